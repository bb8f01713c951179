"""The blocking client is generated from the async one, and is up to date."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import pulse
from tools import generate_client
from tools.generate_client import QUEUES_TARGET, REPLACEMENTS, SOURCE, TARGET, blocking, main


def test_it_is_up_to_date() -> None:
    assert main(["--check"]) == 0


@pytest.mark.rest
def test_a_change_by_hand_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, kept = tmp_path / "client.py", TARGET.read_text()
    changed.write_text(kept.replace("priority: int | None = None", "priority: int = 0"))
    monkeypatch.setattr(generate_client, "TARGET", changed)
    assert main(["--check"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("client.py is not what async_client.py says: make generate\n")
    assert "priority: int = 0" in said
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert changed.read_text() == kept == blocking(SOURCE.read_text())


def test_a_replacement_that_does_nothing_is_an_error() -> None:
    source = SOURCE.read_text().replace("anyio.sleep", "anyio.lowlevel.sleep")
    with pytest.raises(ValueError, match=r"anyio\\.sleep"):
        blocking(source)
    assert len(REPLACEMENTS) == len({pattern for pattern, _ in REPLACEMENTS})


def test_both_files_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "queues.py"
    changed.write_text(QUEUES_TARGET.read_text().replace("of the queue", "of a queue"))
    monkeypatch.setattr(generate_client, "QUEUES_TARGET", changed)
    assert main(["--check"]) == 1
    assert capsys.readouterr().err.startswith("queues.py is not what async_queues.py says: make generate\n")


@pytest.mark.parametrize("path", [TARGET, QUEUES_TARGET])
def test_nothing_async_is_left(path: Path) -> None:
    text = path.read_text()
    assert not [word for word in ("async ", "await ", "anyio", "Async", "aclose", "connect()") if word in text]
    assert "generated" in (inspect.getdoc(inspect.getmodule(pulse.Client)) or "").lower()


def test_connect_takes_what_the_client_takes() -> None:
    """The order of what is named does not matter."""
    takes = [dict(inspect.signature(one).parameters) for one in (pulse.connect, pulse.Client)]
    assert takes[0] == takes[1]
