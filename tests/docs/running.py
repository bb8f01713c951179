"""Runs the blocks of one page, from the first to the last, each by its language."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
from sybil import Example, Lexeme
from sybil.evaluators.python import PythonEvaluator

import pulse
from pulse import config
from tests.docs.shown import Known, compare, plain, with_known
from tests.docs.terminal import Terminal
from tests.support.waiting import until

if TYPE_CHECKING:
    from asyncpg import Connection, Record

READY_S: Final = 40.0
PORTS: Final = ("8000", "8025", "8470")  # another program of this machine may have them
_BEHIND: Final = re.compile(r"&(?: \w+=\$!)?$")  # what the rest of the page runs beside
_FILE: Final = re.compile(r"# (?P<name>[\w/]+\.(?:py|toml))(?P<more>, continued)?\n")


class Page:
    """Where a page is run: a terminal, Python's names, and a directory, in which files are made that blocks name."""

    def __init__(self, env: Mapping[str, str], directory: Path, dsn: str) -> None:
        self._directory = directory
        self._terminal = Terminal(env, directory)
        self._socket = Path(env["PULSE_RUNTIME_DIR"]) / "pulse.sock"
        self._dsn = dsn
        self._known: Known = {port: str(_free_port()) for port in PORTS}
        self._python = PythonEvaluator(["annotations"])
        self.evaluators = {
            "console": self.console, "json": self.json, "python": self.python, "sh": self.sh, "sql": self.sql,
            "toml": self.toml,
        }  # fmt: skip

    def close(self) -> None:
        self._terminal.close()

    def python(self, example: Example) -> None:
        if _FILE.match(example.parsed):
            self._write(example.parsed)
        else:
            source = example.parsed
            example.parsed = Lexeme(with_known(source, self._known), source.offset, source.line_offset)
            self._python(example)

    def sh(self, example: Example) -> None:
        for command in _commands(example.parsed):
            self._succeed(command)

    def console(self, example: Example) -> str | None:
        """Commands behind ``$``, each followed by its output; the last line is ``[exit code N]`` unless that is 0."""
        for command, shown in _dialogue(example.parsed):
            code, said = self._run(command)
            end = f"[exit code {code}]" if code else ""
            said = f"{plain(said)}\n{end}"
            if not plain(shown).endswith(end) or not compare(shown, said, self._known):
                behind = self._terminal.background[-2000:]
                return f"$ {command}\n--- the page shows\n{shown}\n--- it says\n{said}\n--- behind it\n{behind}"
        return None

    def sql(self, example: Example) -> None:
        async def execute() -> None:
            connection: Connection[Record] = await asyncpg.connect(self._dsn)
            try:
                await connection.execute(with_known(example.parsed, self._known))
            finally:
                await connection.close(timeout=5)

        asyncio.run(execute())

    def toml(self, example: Example) -> None:
        if not example.parsed.startswith("# pyproject.toml\n"):  # all others are pulse's
            path = self._directory / "shown.toml"
            path.write_text(example.parsed, "utf-8")
            config.load({}, path)
        self._write(example.parsed)

    def json(self, example: Example) -> None:
        json.loads(example.parsed)

    def _write(self, text: str) -> None:
        named = _FILE.match(text)
        if named is not None:
            path = self._directory / named["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a" if named["more"] else "w", encoding="utf-8") as file:
                file.write(text[named.end() :] if named["more"] else text)

    def _succeed(self, command: str) -> None:
        code, said = self._run(command)
        assert code == 0, f"{command}\nexit code {code}\n{plain(said)}\n{self._terminal.background}"

    def _run(self, command: str) -> tuple[int, str]:
        """Run it; wait until what it leaves behind is ready, as a reader does who types slowly."""
        if command.startswith("pulse-supervisor &") and self._workers() is not None:
            return 0, ""  # it runs already, for all pages; quickstart.md and operating.md start their own
        before = self._workers() if _BEHIND.search(command) else None
        done = self._terminal.run(with_known(command, self._known))
        if _BEHIND.search(command) and "pulse-supervisor" in command:
            until(lambda: self._workers() is not None, command, READY_S)
        elif _BEHIND.search(command) and "pulse worker" in command:
            until(lambda: len(self._workers() or ()) > len(before or ()), command, READY_S)
        return done

    def _workers(self) -> Sequence[object] | None:
        """Those that are connected; None while nobody answers."""
        with contextlib.suppress(pulse.PulseError), pulse.Client(self._socket) as client:
            found = client.workers()
            return found if isinstance(found, list) else None
        return None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _commands(text: str) -> list[str]:
    """The commands of a block: lines, with those that they are continued on, without remarks."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (re.sub(r"(^|\s)#\s.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _dialogue(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", re.sub(r"\\\n>? *", " ", text), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield re.sub(r"\s#\s.*$", "", command).strip(), shown


@contextlib.contextmanager
def importable(directory: Path) -> Iterator[None]:
    """Python's blocks import what the page has written; nothing of it stays loaded."""
    before = set(sys.modules)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(directory)):
                del sys.modules[name]
