"""
``python -m tests.fuzz.live.attacker``: a process that attacks by the orders in its one JSON argument.

It is a process of its own since the dispatcher rightly kills workers that take jobs and do not work on them; then
it is started again. Each line that it writes is a JSON document; its end of input is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.fuzz.live.crowd import CROWD
from tests.fuzz.live.gauges import Turns
from tests.fuzz.live.visits import CLIENTS, OPERATORS, WORKERS, Notes, Script, visit

TELL_S: Final = 0.25
ID_BYTES: Final = 16
MOST_OTHERS: Final = 200
PLANS: Final = {"clients": CLIENTS, "workers": WORKERS, "operators": OPERATORS, "crowd": CROWD}


class Orders(msgspec.Struct, frozen=True):
    """
    What an attacking process must do.

    Attributes:
        plan: One of PLANS.
        frames: How many the server is to read; None: by visits.
        visits: How many connections to make; None: by frames.
        rate: Frames a second, at most, or visits; None: as many as the server takes.
        directory: Where ids are kept: acknowledged, deleted, and those of the healthy ones.
    """

    plan: str
    path: str
    seed: int
    slots: int
    directory: str
    turns: Turns
    frames: int | None = None
    visits: int | None = None
    rate: float | None = None


class Attack:
    def __init__(self, orders: Orders, tell: Callable[[dict[str, object]], None]) -> None:
        self._orders = orders
        self._tell = tell
        self._rng = random.Random(orders.seed)
        self._directory = Path(orders.directory)
        self.notes = Notes(self._keep, orders.turns, rate=orders.rate or float("inf"))
        self._begun = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._report())
            async with asyncio.TaskGroup() as slots:
                for number in range(self._orders.slots):
                    slots.create_task(self._slot(random.Random(self._rng.getrandbits(64) + number)))
            telling.cancel()
        self._say()

    def _is_done(self) -> bool:
        frames, visits = self._orders.frames, self._orders.visits
        return (frames is not None and self.notes.read >= frames) or (visits is not None and self._begun >= visits)

    async def _slot(self, rng: random.Random) -> None:
        plan = PLANS[self._orders.plan]
        weights = [weight for weight, _ in plan]
        scripts: Sequence[Script] = [script for _, script in plan]
        while not self._is_done():
            if left_s := self.notes.rest_s():
                await asyncio.sleep(left_s)
                continue
            self._begun += 1
            if self._orders.visits is not None:
                await self.notes.pace(1)
            await visit(self.notes, self._orders.path, rng.choices(scripts, weights)[0], rng)

    async def _report(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                self._look_at_others()
                await asyncio.sleep(TELL_S)
                self._say()

    def _say(self) -> None:
        notes = self.notes
        for complaint in notes.complaints:
            self._tell({"complaint": complaint})
        notes.complaints.clear()
        counts = {"read": notes.read, "sent": notes.sent, "connections": notes.connections, "refused": notes.refused}
        self._tell({**counts, "answers": dict(notes.answers)})

    def _keep(self, what: str, ids: Sequence[bytes]) -> None:
        with (self._directory / what).open("ab") as file:
            file.write(b"".join(ids))

    def _look_at_others(self) -> None:
        """The jobs of the healthy ones, as an attacker might guess or overhear them."""
        with contextlib.suppress(FileNotFoundError), (self._directory / "healthy").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size // ID_BYTES - MOST_OTHERS) * ID_BYTES)
            data = file.read()
            ids = [data[at : at + ID_BYTES] for at in range(0, len(data) - ID_BYTES + 1, ID_BYTES)]
            self.notes.others[:] = [(one, attempt) for one in ids for attempt in (1, 2)]


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)

    def tell(what: dict[str, object]) -> None:
        try:
            sys.stdout.write(json.dumps({"at_s": time.monotonic(), **what}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # its parent has gone
            os._exit(1)

    asyncio.run(Attack(orders, tell).run())


if __name__ == "__main__":
    main()
