"""What a call of ``pulse`` costs before it does anything, and how shells complete it."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commandline.cli import environment, pulse, run

pytestmark = [pytest.mark.process, pytest.mark.timed]

HERE = Path(tempfile.gettempdir())
LOOPS = {"anyio", "asyncio", "asyncpg", "trio", "structlog", "rich", "ssl"}
CTL = {
    *(
        "actors",
        "audit",
        "dispatch",
        "drain",
        "jobs",
        "limits",
        "login",
        "logout",
        "logs",
        "ping",
        "schedules",
        "status",
    ),
    *("queues", "submit", "top", "topics", "workers"),
}


class TestStart:
    @pytest.mark.parametrize(("line", "code", "unwanted"), [
        *((line, 0, LOOPS | {"msgspec", "msgpack"}) for line in ("--help", "ctl --help", "--version")),
        *((line, 3, LOOPS | {"importlib.metadata"}) for line in ("ctl status", "ctl logs", "ctl jobs list")),
        ("doctor --help", 0, LOOPS | {"importlib.metadata"}),
    ])  # fmt: skip
    def test_only_what_is_needed_is_imported(self, line: str, code: int, unwanted: set[str]) -> None:
        """Help lists commands and imports none; a question needs the wire; rich is for terminals alone."""
        done = pulse(HERE, line, command=[sys.executable, "-X", "importtime", "-m", "pulse.cli.main"])
        imported = {name.rpartition("|")[2].strip() for name in done.err.splitlines()}
        assert done.code == code
        assert "click" in imported
        assert not imported & unwanted

    def test_help_is_fast(self) -> None:
        """The whole process takes less than twice the processor of Python with click; the best of several in turn."""

        def cpu_s(start: Callable[[], object]) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        with_click = [sys.executable, "-c", "import click"]
        starts = (lambda: pulse(HERE, "--help"), lambda: subprocess.run(with_click, check=True))
        helps_s, clicks_s = zip(*([cpu_s(start) for start in starts] for _ in range(5)), strict=True)
        assert min(helps_s) < 2 * min(clicks_s)

    def test_version(self) -> None:
        assert re.fullmatch(r"pulse \d+\.\d+\.\d+\S*\n", pulse(HERE, "--version").out)


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_script(self, shell: str) -> None:
        done = pulse(HERE, f"completion {shell}")
        assert done.code == 0
        assert "_PULSE_COMPLETE" in done.out
        assert "pulse" in done.out

    @pytest.mark.rest
    @pytest.mark.parametrize(("words", "expected"), [
        ("pulse ctl ", CTL),
        ("pulse ctl jobs list --st", {"--status"}),
        ("pulse ctl jobs list --status re", {"RETRYING"}),
        (
            "pulse ctl jobs list --status ",
            {"PENDING", "RUNNING", "RETRYING", "COMPLETED", "DEAD_LETTERED", "CANCELED"},
        ),
        ("pulse ctl actors restart w", {"watchdog"}),
        ("pulse ctl actors restart m", {"metrics"}),
        ("pulse ctl logs --level w", {"warning"}),
        ("pulse ctl logs --actor m", {"metrics"}),
        ("pulse ctl logs --actor p", {"pause", "pool"}),
        ("pulse ctl top --", {"--once", "--interval", "--json", "--help"}),
        ("pulse doctor --s", {"--schema", "--strict"}),
        ("pulse completion ", {"bash", "zsh", "fish"}),
    ])  # fmt: skip
    def test_completions(self, words: str, expected: set[str]) -> None:
        count = len(words.split(" ")) - 1
        done = run([], environment(_PULSE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(count)))
        assert {line.partition(",")[2] for line in done.out.splitlines()} == expected
