"""``pulse ctl`` on a terminal: colours, widths, progress, and the same text where they are not wanted."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulse.common.text import width_of
from tests.support.commandline import cli_answers as answers
from tests.support.commandline.cli import Done, environment, run, run_on_terminal
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

pytestmark = pytest.mark.process

JOB = str(answers.JOB_ID)
LISTINGS = ["ctl jobs list", "ctl workers", "ctl schedules list", "ctl topics list"]
PAGES = ["ctl status", f"ctl jobs get {JOB}", f"ctl schedules get {answers.SCHEDULE_ID}", "ctl dispatch status"]
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from pulse.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def directory() -> Iterator[Path]:
    with answers.system() as dispatcher:
        yield dispatcher.directory


def pulse(directory: Path, line: str, *, env: dict[str, str] | None = None, **options: Any) -> Done:
    return run_on_terminal(shlex.split(line), environment(directory, **(env or {})), **options)


@pytest.mark.rest
@pytest.mark.parametrize("line", LISTINGS + PAGES)
def test_the_text_is_the_same_without_colours(directory: Path, line: str) -> None:
    """Colours carry nothing beyond the words: without them, or without rich, the words are the same."""
    shown = pulse(directory, line)
    assert (shown.code, "\x1b[" in shown.out) == (0, True)
    assert "\x1b[31mcannot" not in shown.out  # which the server sent
    styled = _timeless(shown)
    plain = pulse(directory, line, env={"NO_COLOR": "1"})
    assert "\x1b" not in plain.out
    assert styled == _timeless(plain)
    assert styled == _timeless(pulse(directory, line, command=(sys.executable, "-c", WITHOUT_RICH)))


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("line", LISTINGS)
def test_listings_fit(directory: Path, line: str, columns: int) -> None:
    done = pulse(directory, line, columns=columns)
    lines = [text for text in done.plain.splitlines() if not text.startswith("more: ")]
    assert all(width_of(text.rstrip()) <= columns for text in lines)
    if line not in {"ctl workers", "ctl topics list"}:
        assert (JOB[:13] in done.plain, JOB[:-1] in done.plain) == (True, False)
        assert JOB[:-1] in pulse(directory, f"{line} --full", columns=columns).plain


def test_long_texts_of_a_job() -> None:
    long = "E" * 60_000
    history = [{"attempt": 1, "outcome": "error", "error": long, "started_at": 1.0, "ended_at": 2.0}]
    row = answers.job(last_error=long, history=history)
    with RuntimeDir() as place, FakeDispatcher(place.path, {"jobs.get": {"job": row}}):
        shown = pulse(place.path, f"ctl jobs get {JOB}", columns=80)
        piped = run(["ctl", "jobs", "get", JOB], environment(place.path))
    assert len(shown.plain) < 8000
    assert "bytes left out …" in shown.plain
    assert "--json has all of it" in shown.plain
    assert piped.out.count("E") > 60_000


@pytest.mark.parametrize("line", [f"{line} --json" for line in LISTINGS + PAGES])
def test_json_stays_json(directory: Path, line: str) -> None:
    done = pulse(directory, line)
    assert "\x1b" not in done.out
    assert done.out.count("\n") > 3
    assert json.loads(done.out) == run(shlex.split(line), environment(directory)).document


def test_progress_of_a_bulk_submit(directory: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as ids:
        try:
            done = pulse(directory, "ctl submit x -", stdin=b"{}\n" * 500, stdout=writer)
        finally:
            os.close(writer)
        assert len(ids.read().split()) == 500
    assert done.code == 0
    assert "500 jobs submitted in " in done.plain
    assert "/s)" in done.plain


def test_no_progress_between_ids(directory: Path) -> None:
    done = pulse(directory, "ctl submit x -", stdin=b"{}\n" * 3)
    assert len(done.plain.split()) == 3
    assert "\r\x1b[K" not in done.out


def _timeless(done: Done) -> list[str]:
    lines = re.sub(r"\d+ (s|min|h|d)\b", "", done.plain).splitlines()
    return [" ".join(word for word in line.split() if word.isalpha()) for line in lines]
