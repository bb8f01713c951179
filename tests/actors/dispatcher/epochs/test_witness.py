"""What a witness remembers beside the database: in order, with many writers, and without slowing it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from pulse.store.connections.pool import Target
from pulse.store.recovery.timelines import ServerTimeline
from pulse.store.rows import Claim
from pulse.store.store import Store
from pulse_actors.dispatcher.epochs import witness as module
from pulse_actors.dispatcher.epochs.witness import Witness
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.shared.epoch_memory import Memory, MemoryFile
from tests.support.store.claim_parts import claim_parts
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio

LINEAGE: Final = UUID(int=1)
CROSSING: Final = Claim(bytes(16), 1001, "n", "t", "{}", None, 0, 0.0, 0, 0)
SOON_S: Final = 0.05
LATE_S: Final = 2.0  # a disk that hangs does so for longer than the witness waits here, and no test for ever


class Disk:
    def __init__(self) -> None:
        self.asked = 0
        self.goes_on = threading.Event()

    def hang(self, *_given: object) -> None:
        self.asked += 1
        self.goes_on.wait(LATE_S)

    async def is_asked(self) -> None:
        await until_async(lambda: self.asked > 0, "the disk is asked")


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.goes_on.set()


def witness_of(directory: Path, dsn: str = "postgresql://u:secret@a,b:1/d") -> Witness:
    store, registry = Store(Target(dsn, "t")), WorkerRegistry()
    claims = claim_parts(store, registry, None, lease_s=15.0, poll_s=60.0, batch=100)
    return Witness(
        store, registry, in_doubt=claims.in_doubt, signal=claims.signal, host="host", directory=directory, lease_s=15.0
    )


async def opened(directory: Path) -> tuple[Witness, Memory]:
    witness = witness_of(directory)
    memory = msgspec.structs.replace(await witness._opened(LINEAGE), counter=1)
    await witness._remember(memory)
    return witness, memory


def kept(witness: Witness) -> Memory:
    directory = witness._file.directory
    witness._file.close()
    return MemoryFile(directory).open(LINEAGE)


def problems(witness: Witness) -> list[str]:
    return [one.text for one in witness.findings() if one.check == "memory"]


async def test_a_tick_and_a_claim_at_once(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is written after the other, and neither over what is newer."""
    witness, memory = await opened(tmp_path)
    keep, written = witness._file.keep, list[tuple[int, int]]()

    def note(memory: Memory) -> None:
        written.append((memory.counter, memory.highest))
        keep(memory)

    monkeypatch.setattr(witness._file, "keep", note)
    monkeypatch.setattr(os, "fsync", disk.hang)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(witness._remember, msgspec.structs.replace(memory, counter=2))
        await disk.is_asked()
        tasks.start_soon(witness._remember, msgspec.structs.replace(memory, counter=3))
        await checkpoint()
        tasks.start_soon(witness.claimed, [CROSSING])
        await checkpoint()
        disk.goes_on.set()
    assert written == [(2, 1000), (3, 2000), (3, 2000)]
    assert problems(witness) == []
    assert kept(witness) == witness._memory


async def test_a_state_directory_that_hangs(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    witness, memory = await opened(tmp_path)
    began_s = anyio.current_time()
    with monkeypatch.context() as patch:
        patch.setattr(module, "KEEP_S", SOON_S)
        patch.setattr(os, "fsync", disk.hang)
        await witness._remember(msgspec.structs.replace(memory, counter=2))
        assert "does not answer" in "".join(problems(witness))
        await witness.claimed([CROSSING])
    assert anyio.current_time() - began_s < LATE_S / 2
    assert disk.asked == 1
    assert "does not answer" in "".join(problems(witness))
    disk.goes_on.set()
    path = tmp_path / f"database-{LINEAGE}.json"
    await until_async(lambda: msgspec.json.decode(path.read_bytes(), type=Memory) == witness._memory, "it is written")
    await until_async(lambda: not problems(witness), "nothing is wrong any more")
    assert witness._memory is not None
    assert (witness._memory.counter, witness._memory.highest) == (2, 2000)


async def test_a_state_directory_that_hangs_at_first(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The witness goes on in memory, and never overwrites what it has not read."""
    before, memory = await opened(tmp_path)
    before._file.close()
    witness = witness_of(tmp_path)
    began_s = anyio.current_time()
    with monkeypatch.context() as patch:
        patch.setattr(module, "OPEN_S", SOON_S)
        patch.setattr(fcntl, "flock", disk.hang)
        new = await witness._opened(LINEAGE)
    assert anyio.current_time() - began_s < LATE_S / 2
    assert new.instance != memory.instance
    assert "does not answer" in "".join(problems(witness))
    disk.goes_on.set()
    await witness._remember(new)
    assert kept(before) == memory
    assert problems(witness) != []


async def test_which_database_it_was(tmp_path: Path) -> None:
    """It is kept, without user and password; a dispatcher takes the timeline from its own file, not from a copy."""
    first, memory = await opened(tmp_path)
    assert memory.database == "a:5432,b:1/d"
    for database, is_old in (("a:5432,b:1/d", True), ("", True), ("staging:5432/d", False)):
        await first._remember(msgspec.structs.replace(memory, system_id="7", timeline=2, database=database))
        first._file.close()
        witness = witness_of(tmp_path)
        assert (await witness._opened(LINEAGE)).database == "a:5432,b:1/d"
        assert witness._timelines.is_old(ServerTimeline("7", 1)) is is_old
        witness._file.close()
        first._file.open(LINEAGE)
