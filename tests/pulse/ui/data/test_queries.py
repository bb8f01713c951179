"""The dashboard's questions: each is asked once for all who want to know, and what was answered last is remembered."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from pulse.errors import NobodyAnswersError, PulseError
from pulse.ui.data.queries import SHARED_S, Questions


class Link:
    """A connection to a dispatcher; its answers are numbered, while it answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: PulseError | None = None

    async def ask(self, *_: object, **__: object) -> dict[str, object]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"number": self.asked}


@pytest.mark.anyio
async def test_a_question_is_asked_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one, or the same after a second, is asked anew."""
    questions, link, moment = Questions(None), Link(), [100.0]
    questions._dispatcher = link  # type: ignore[assignment]
    monkeypatch.setattr("pulse.ui.data.queries.time.monotonic", lambda: moment[0])
    same = await asyncio.gather(*(questions.ask("jobs.list", {"limit": 5}) for _ in range(3)))
    other = await questions.ask("jobs.list", {"limit": 6})
    moment[0] += SHARED_S
    later = await questions.ask("jobs.list", {"limit": 5})
    assert [one["number"] for one in (*same, other, later)] == [1, 1, 1, 2, 3]


@pytest.mark.anyio
async def test_the_newest_answer_outlasts_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is asked again at once; a change makes all that was known old."""
    questions, link, moment = Questions(None), Link(), [100.0]
    questions._dispatcher = link  # type: ignore[assignment]
    monkeypatch.setattr("pulse.ui.data.queries.time.monotonic", lambda: moment[0])
    assert questions.last("jobs.list") is None
    await questions.ask("jobs.list")
    moment[0] += 5.0
    link.error = NobodyAnswersError("away")
    for asked in (2, 3):
        with pytest.raises(NobodyAnswersError):
            await questions.ask("jobs.list")
        assert (questions.last("jobs.list"), link.asked) == ((5.0, {"number": 1}), asked)
    assert questions.last("jobs.list", {"limit": 5}) is None
    with pytest.raises(NobodyAnswersError):
        await questions.change("jobs.retry", {}, behalf="ann", within_s=0.0)
    assert questions.last("jobs.list") is None


@pytest.mark.anyio
async def test_the_supervisor_is_beside_the_dispatcher(tmp_path: Path) -> None:
    questions = Questions(tmp_path / "pulse.sock")
    with pytest.raises(NobodyAnswersError, match=r"supervisor.sock \(no such file\)"):
        await questions.ask_supervisor()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "supervisor.sock"))
        assert questions._find_supervisor() == tmp_path / "supervisor.sock"


@pytest.mark.anyio
@pytest.mark.parametrize("named", [True, False])
async def test_a_server_elsewhere_has_no_supervisor_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """The one of this machine belongs to another queue; its actors are neither shown nor restarted."""
    monkeypatch.setenv("PULSE_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "supervisor.sock").touch()
    address = "tls://mail.example:7420"
    if not named:
        monkeypatch.setenv("PULSE_CONNECT", address)
    questions = Questions(address if named else None)
    for asked in (questions.ask_supervisor(), questions.restart("watchdog", behalf="ann")):
        with pytest.raises(NobodyAnswersError, match=f"on its own machine only: {address} leads to jobs$"):
            await asked
