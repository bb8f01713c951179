"""Kills within a step: it runs again unless the server has its result, and what has finished never does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from uuid import UUID

import pytest

import pulse
from pulse.app.workflows import receipt, steps
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

APP: Final = "tests.pulse.app.workflows.test_kills_system:app"
FILES: Final = {steps.__file__, receipt.__file__}
BEHIND: Final = "behind the last line"
WITHIN_S: Final = 60.0
WRITES: Final = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%SET checkpoint%'"

app: Final = pulse.App()


class Fuse:
    """
    Kills this process at a line of the code that keeps steps, and leaves a word about where it was.

    Args:
        path: Of the file that gets the word: once it is there, nothing is killed any more.
        at: The number of the line, of all that are come to.
    """

    def __init__(self, path: Path, at: int) -> None:
        self._path = path
        self._left = 0 if path.exists() else at

    def __call__(self, frame: FrameType, event: str, _: object) -> Fuse | None:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._path.write_text(frame.f_code.co_name)
                kill_myself()
        return self

    def burn_down(self) -> None:
        """All lines are over."""
        if self._left > 0:
            self._path.write_text(BEHIND)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def effect(path: str, name: str) -> str:
    with Path(path).open("a") as file:
        file.write(f"{name}\n")
    return name.upper()


def effects(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@app.handler("plain", topic="plain", isolate=True)
def plain(path: str, at: int, ctx: pulse.Context) -> list[str]:
    fuse = Fuse(Path(f"{path}.killed"), at)
    sys.settrace(fuse)
    try:
        charged = ctx.step("charge", effect, path, "charge")
    finally:
        sys.settrace(None)
    fuse.burn_down()
    return [charged, ctx.step("mail", effect, path, "mail")]


@app.handler("awaits", topic="awaits", isolate=True)
async def awaits(path: str, at: int, ctx: pulse.Context) -> list[str]:
    fuse = Fuse(Path(f"{path}.killed"), at)
    sys.settrace(fuse)
    try:
        charged = await ctx.step("charge", effect, path, "charge")
    finally:
        sys.settrace(None)
    fuse.burn_down()
    return [charged, await ctx.step("mail", effect, path, "mail")]


@app.handler("gated", topic="gated")
def gated(path: str, gate: str, ctx: pulse.Context) -> list[Any]:
    """Its step has its effect, says which process it is in, and returns when it may."""

    def charge() -> str:
        effect(path, "charge")
        Path(f"{path}.pid").write_text(str(os.getpid()))
        while not Path(gate).exists():
            time.sleep(0.005)
        return "paid"

    paid = ctx.step("charge", charge)
    return [paid, effect(path, "then"), ctx.attempt, ctx.previous is not None and "charge" in ctx.previous.steps]


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    with server.database() as dsn, place(dsn, PULSE_POLL_S="0.2") as made:
        made.start()
        made.pool("--processes", "2", "--concurrency", "1", app=APP)
        yield made


@contextmanager
def locked(whole: Whole, job: UUID) -> Iterator[None]:
    """Nobody can write the row of *job* meanwhile."""
    whole.rows("BEGIN")
    whole.rows("SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", job)
    yield
    whole.rows("COMMIT")


def _writes(whole: Whole) -> list[int]:
    """The database's processes that wait to write a checkpoint."""
    whole.rows("SELECT pg_stat_clear_snapshot()")
    return [row["pid"] for row in whole.rows(WRITES)]


def _scene(whole: Whole, directory: Path, killed: str, *, is_written: bool) -> bool:
    """Kill them while the database is about to write; whether the second attempt had the result."""
    path, gate = directory / "effects", directory / "gate"
    directory.mkdir()
    jobs = whole.jobs()
    job = jobs.submit("gated", {"path": str(path), "gate": str(gate)})
    worker = int(until(lambda: Path(f"{path}.pid").exists() and Path(f"{path}.pid").read_text(), "the step runs"))
    dispatcher = whole.pids()["dispatcher"]
    with locked(whole, job):
        gate.touch()
        writers = until(lambda: _writes(whole), "the result is on its way", WITHIN_S)
        for who, pid in (("dispatcher", dispatcher), ("worker", worker)):
            if killed in {who, "both"}:
                os.kill(pid, signal.SIGKILL)
        if not is_written:
            whole.rows("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", writers)
    paid, then, attempt, had = jobs.wait(job, within_s=WITHIN_S).result_as(list[Any])
    assert (paid, then, attempt) == ("paid", "THEN", 1 if killed == "dispatcher" else 2)
    assert effects(path) == ["charge"] * (1 if attempt == 1 or had else 2) + ["then"]
    return bool(had)


@pytest.mark.rest
@pytest.mark.parametrize(("killed", "is_written"), [
    ("worker", True), ("dispatcher", True), ("dispatcher", False), ("both", True), ("both", False),
])  # fmt: skip
def test_killed_while_the_result_is_written(whole: Whole, tmp_path: Path, killed: str, is_written: bool) -> None:
    """
    The step has had its effect, and nobody has heard yet whether the database has its result.

    Again, if the machine was so slow that the statement gave up its wait for the row: then nothing was written.
    """
    wanted = killed != "dispatcher" and is_written
    found = (_scene(whole, tmp_path / str(number), killed, is_written=is_written) for number in range(3))
    assert any(had == wanted for had in found)


@pytest.mark.rest
@pytest.mark.parametrize("name", ["plain", "awaits"])
def test_killed_at_each_line(whole: Whole, tmp_path: Path, name: str) -> None:
    """Before the effect and after the answer a step runs once; in between twice; and never what comes behind it."""
    jobs = whole.jobs()
    where: list[tuple[str, int]] = []
    for at in range(1, 1000):
        path = tmp_path / str(at)
        job = jobs.submit(name, {"path": str(path), "at": at})
        done = jobs.wait(job, within_s=WITHIN_S)
        assert done.result == ["CHARGE", "MAIL"]
        found = effects(path)
        where.append((Path(f"{path}.killed").read_text(), found.count("charge")))
        assert found == ["charge"] * where[-1][1] + ["mail"]
        if where[-1][0] == BEHIND:
            break
    counts = [count for _, count in where]
    assert counts[0] == counts[-1] == 1
    assert {count for place, count in where if place in {"_put", "_keep"}} == {2}
    assert {count for place, count in where if place in {"_copy", BEHIND}} == {1}
    assert set(counts) == {1, 2}
