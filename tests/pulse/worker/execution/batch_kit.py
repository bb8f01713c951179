"""An app with one handler of batches, which a runner calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

import pulse
from pulse.app.outcome import Outcome
from pulse.app.tracing import Tracing
from pulse.app.workflows.receipt import Receipt
from pulse.logs import LOGGED
from pulse.protocol import Assignment
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.batch import BatchCall
from pulse.worker.execution.runner import make_runner
from pulse.worker.execution.server_reader import ServerReader

Jobs = list[pulse.BatchJob[Any]]


class Office:
    identity = "me"
    schema = "pulse"

    def __init__(self) -> None:
        self.endings: dict[int, Outcome] = {}
        self.errors: list[tuple[BaseException, int]] = []
        self.progress: dict[int, str] = {}
        self.checkpoints: dict[int, str] = {}
        self.lost: set[int] = set()
        self.changed = anyio.Event()

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        assert number(attempt) not in self.endings, "it ends once"
        self.endings[number(attempt)] = ending
        self.changed.set()

    def raised(self, error: BaseException) -> None:
        logged = LOGGED.get()
        assert logged is not None
        self.errors.append((error, int.from_bytes(logged.id)))

    def lease_lost(self, attempt: Attempt) -> bool:
        return number(attempt) in self.lost

    def fenced(self, attempt: Attempt, phase: str) -> None:
        """Not here."""

    def progressed(self, attempt: Attempt, text: str) -> None:
        self.progress[number(attempt)] = text

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        self.checkpoints[number(attempt)] = text

    @property
    def reader(self) -> ServerReader:
        """Nobody asks here."""
        return ServerReader(None, None)


def number(attempt: Attempt) -> int:
    return int.from_bytes(attempt.job.id)


class Scene:
    """An app with a handler of batches called "n"."""

    def __init__(self) -> None:
        self.app = pulse.App()
        self.office = Office()
        self.values: Mapping[Any, Any] = {}
        self.tracing: Tracing | None = None

    def attempts(self, *args: str, **extra: object) -> list[Attempt]:
        packed = {key: msgspec.Raw(msgspec.msgpack.encode(value)) for key, value in extra.items()}
        handler = self.app.handlers["n"]
        return [
            Attempt(Assignment((one + 1).to_bytes(16), 1, "n", "t", text, 60.0, 30.0, packed or None), handler, 0.0)
            for one, text in enumerate(args)
        ]

    async def call(self, attempts: list[Attempt], meanwhile: Callable[[], object] = lambda: None) -> dict[int, Outcome]:
        """Call the handler for *attempts*; *meanwhile* is called as soon as it waits."""
        async with anyio.create_task_group() as group:
            make_runner(self.office, group, 10, self.tracing, self.values).start(BatchCall(attempts))
            await anyio.wait_all_tasks_blocked()
            meanwhile()
            with anyio.fail_after(10):
                while len(self.office.endings) < len(attempts):
                    self.office.changed = anyio.Event()
                    await self.office.changed.wait()
            group.cancel_scope.cancel()
        return self.office.endings
