"""Makes things go wrong, by the seed: at a time, or the moment a process reaches a certain point."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from tests.simulation.clients import Operator
from tests.simulation.machine.process import PROCESS, Process
from tests.simulation.scenario import LEASE_S

if TYPE_CHECKING:
    from tests.simulation.site import Site
    from tests.simulation.world import World

STATEMENTS: Final = (
    "claim:before", "claim:after", "claim:after", "end:before", "end:after", "complete:before", "complete:after",
    "extend:after", "running_of:after", "move:after", "submit:after", "submit_and_claim:before",
    "submit_and_claim:after", "submit_and_claim:after", "lapsed:after", "mark_sweep:after", "tick:before",
    "tick:after", "begin:before", "begin:after",
)  # fmt: skip
OF_WORKFLOWS: Final = (
    "submit_held:before", "submit_held:after", "signal:before", "signal:after", "next_signal:after",
    "checkpoint:before", "checkpoint:after", "settle_forgotten:before",
)  # fmt: skip
WORDS: Final = ("assign:after", "started:before", "started:after", "report:before", "report:after")
OPERATIONS: Final[Sequence[tuple[str, *tuple[tuple[str, object], ...]]]] = (
    ("jobs.cancel",), ("jobs.cancel",), ("jobs.cancel",), ("jobs.retry",), ("jobs.retry",), ("jobs.delete",),
    ("jobs.change", ("priority", 5)), ("jobs.change", ("priority", -5)),
    ("jobs.change", ("topic", "other"), ("priority", 0)), ("jobs.change", ("topic", "default")),
)  # fmt: skip
TICKS_S: Final = 2.5  # a dump takes longer than a tick or two of each dispatcher
MANY: Final = 9  # troubles in a row: no heartbeat can be relied on


class Nemesis:
    def __init__(self, world: World, only: Sequence[str]) -> None:
        self._world = world
        self._only = only
        self._chance = world.chance
        self._traps: dict[str, list[list[object]]] = {}
        self._goes_back = False
        self._heal: list[Callable[[], None]] = []
        self.over = False

    # Traps.

    def reached(self, point: str) -> None:
        """A process has come to that point, and may get no further."""
        traps = self._traps.get(point)
        if traps is None:
            return
        process = PROCESS.get()
        for trap in list(traps):
            left, act = trap
            assert isinstance(left, int)
            trap[0] = left - 1
            if left <= 0:
                traps.remove(trap)
                self._world.trace("trap", process, point=point)
                assert callable(act)
                act(process)

    def _trap_a_statement(self) -> None:
        has_workflows = self._world.scenario.has_workflows
        point = self._chance.choice((*STATEMENTS, *OF_WORKFLOWS) if has_workflows else STATEMENTS)
        statement, _, when = point.partition(":")
        acts: list[Callable[[Process], None]] = [self._kill, self._kill, self._stop_for_a_while]
        if when == "after":
            acts += [lambda _process: self._lose_answer(statement)] * 3
        self._set_trap(point, self._chance.choice(acts))

    def _trap_a_word(self) -> None:
        acts = (self._kill, self._kill, self._stop_for_a_while, self._cut_one)
        self._set_trap(self._chance.choice(WORDS), self._chance.choice(acts))

    def _set_trap(self, point: str, act: Callable[[Process], None]) -> None:
        self._traps.setdefault(point, []).append([self._chance.randrange(4), act])

    # What is done to somebody.

    def _kill(self, process: Process) -> None:
        process.machine.signal(process, signal.SIGKILL, None)

    def _stop_for_a_while(self, process: Process) -> None:
        self._freeze(process, self._chance.choice((0.2, 2.0, LEASE_S, 2 * LEASE_S)) * self._chance.uniform(0.5, 1.5))

    def _freeze(self, process: Process, for_s: float) -> None:
        process.machine.signal(process, signal.SIGSTOP, None)
        self._later(for_s, lambda: process.machine.signal(process, signal.SIGCONT, None))

    def _cut_one(self, process: Process) -> None:
        if process.ends:
            self._chance.choice(process.ends).link.budget = self._chance.randrange(1, 300)

    def _lose_answer(self, statement: str) -> None:
        self._world.database.losing.add(statement)
        self._world.database.trouble_begins(1)()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call *act* then, or at the end."""
        done: list[bool] = []

        def once() -> None:
            if not done:
                done.append(True)
                act()

        self._heal.append(once)
        self._world.timers.after(delay_s, once)

    # The course of things.

    async def run(self, trouble_s: float) -> None:
        """Do evil for so long, then repair everything."""
        chance = self._chance
        chosen = self._only or chance.sample(list(EVIL), chance.randrange(1, 6))
        until_s = trio.current_time() + trouble_s
        pause_s = chance.choice((0.5, 1.5, 3.0))
        while trio.current_time() < until_s:
            await trio.sleep(chance.expovariate(1 / pause_s))
            kind = chance.choice(chosen)
            self._world.judge.count(kind)
            EVIL[kind](self)
        self._traps.clear()
        self._world.database.losing.clear()
        for repair in self._heal:
            repair()
        for process in self._world.everybody():
            if process.stopped:
                process.machine.signal(process, signal.SIGCONT, None)
            for end in process.ends:
                end.link.budget = None
        self._world.trace("peace")
        self.over = True

    def _site(self) -> Site:
        return self._chance.choice(self._world.sites)

    def _worker(self) -> Process | None:
        living = [one for one in self._site().workers.values() if not one.dead]
        return self._chance.choice(living) if living else None

    def _kill_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            worker.machine.signal(worker, self._chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)), None)

    def _stop_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._stop_for_a_while(worker)

    def _kill_actor(self) -> None:
        actor = self._site().actors[self._chance.choice(("dispatcher", "dispatcher", "watchdog"))]
        if not actor.dead:
            self._kill(actor)

    def _stop_actor(self) -> None:
        actor = self._site().actors[self._chance.choice(("dispatcher", "dispatcher", "watchdog"))]
        if not actor.dead:
            self._stop_for_a_while(actor)

    def _restart_actor(self) -> None:
        self._site().stop_politely("dispatcher")

    def _cut_link(self) -> None:
        worker = self._worker()
        if worker is not None:
            self._cut_one(worker)

    def _database_away(self) -> None:
        database = self._world.database
        if database.down:
            return
        database.down, ends = True, database.trouble_begins(1)
        database.mute = self._chance.random() < 0.3
        self._world.trace("database away", mute=database.mute)

        def back() -> None:
            database.down = False
            ends()
            self._world.trace("database back")

        self._later(
            self._chance.choice((1.0, LEASE_S / 2, LEASE_S, 2 * LEASE_S)) * self._chance.uniform(0.5, 1.5), back
        )

    def _database_goes_back(self) -> None:
        """To a backup, or to what a standby had when it was promoted; it may be away for a moment."""
        world, database, chance = self._world, self._world.database, self._chance
        if self._goes_back:
            return
        self._goes_back, restore = True, world.backup()
        lost_s, away_s = chance.choice((0.02, 0.3, 2.0, 6.0)) * chance.uniform(0.5, 1.5), chance.choice((0.0, 0.5, 3.0))
        in_place = lost_s > TICKS_S and chance.random() < 0.3
        world.trace("database is backed up", lost_s=lost_s)

        def back() -> None:
            self._goes_back = database.down = False
            restore(in_place=in_place)
            database.trouble_begins(1)()

        def goes() -> None:
            if database.down:
                self._goes_back = False  # it was away for another reason
            elif in_place or not away_s:
                back()
            else:
                database.down = True
                self._later(away_s, back)

        self._later(lost_s, goes)

    def _database_flaky(self) -> None:
        database, ends = self._world.database, self._world.database.trouble_begins(MANY)
        database.refused, database.lost = self._chance.uniform(0.0, 0.3), self._chance.uniform(0.0, 0.3)

        def well() -> None:
            database.refused = database.lost = 0.0
            ends()

        self._later(self._chance.uniform(1.0, 8.0), well)

    def _clock_set(self) -> None:
        step_s = self._chance.choice((-1, 1)) * self._chance.choice((0.5, 5.0, 3 * LEASE_S)) * self._chance.random()
        self._world.database.stepped_s += step_s
        self._world.trace("database clock set", by_s=step_s)
        self._world.database.trouble_begins(1)()

    def _lock_rows(self) -> None:
        database = self._world.database
        jobs = list(database.rows.jobs)
        if jobs:
            locked = set(self._chance.sample(jobs, self._chance.randrange(1, min(4, len(jobs) + 1))))
            database.locked |= locked
            ends = database.trouble_begins(MANY, database.locks)

            def unlocked() -> None:
                database.locked -= locked
                ends()

            self._later(self._lock_s(), unlocked)

    def _lock_table(self) -> None:
        database = self._world.database
        if database.table_locked:
            return
        database.table_locked, ends = True, database.trouble_begins(MANY, database.locks)

        def unlocked() -> None:
            database.table_locked = False
            ends()

        self._later(self._lock_s(), unlocked)

    def _lock_s(self) -> float:
        return self._chance.choice((0.4, LEASE_S / 2, LEASE_S, 2 * LEASE_S)) * self._chance.uniform(0.5, 1.5)

    def _cut_machine_off(self) -> None:
        machine = self._site().machine
        if machine.cut_off:
            return
        machine.cut_off = True
        self._world.trace("cut off from the database", machine=machine.name)

        def back() -> None:
            machine.cut_off, machine.cut_off_s = False, trio.current_time()
            self._world.trace("back at the database", machine=machine.name)

        self._later(self._chance.choice((1.0, LEASE_S, 2 * LEASE_S)) * self._chance.uniform(0.5, 1.5), back)

    def _stop_machine(self) -> None:
        for_s = self._chance.choice((1.0, LEASE_S, 2 * LEASE_S)) * self._chance.uniform(0.5, 1.5)
        for process in self._site().everybody:
            self._freeze(process, for_s)

    def _reboot(self) -> None:
        site = self._site()
        if site.everybody:
            self._world.trace("reboot", machine=site.machine.name)
            site.reboot(self._chance.uniform(0.5, 4.0))

    def _operate(self) -> None:
        jobs = list(self._world.database.rows.jobs)
        if jobs:
            kind, *more = self._chance.choice(OPERATIONS)
            chosen = self._chance.sample(jobs, self._chance.randrange(1, min(4, len(jobs) + 1)))
            if kind == "jobs.delete":  # what its producer knows to be there, and does not submit again
                chosen = [one for one in chosen if one in self._world.acknowledged] or chosen[:0]
            if chosen:
                self._site().machine.spawn("operator", Operator(kind, chosen, **dict(more)).main)


EVIL: Final[dict[str, Callable[[Nemesis], None]]] = {
    "trap at a statement": Nemesis._trap_a_statement, "trap at a word": Nemesis._trap_a_word,
    "kill a worker": Nemesis._kill_worker, "stop a worker": Nemesis._stop_worker,
    "kill an actor": Nemesis._kill_actor, "stop an actor": Nemesis._stop_actor,
    "restart the dispatcher": Nemesis._restart_actor, "cut a connection": Nemesis._cut_link,
    "database away": Nemesis._database_away, "database goes back": Nemesis._database_goes_back,
    "database flaky": Nemesis._database_flaky, "database clock set": Nemesis._clock_set,
    "rows locked": Nemesis._lock_rows, "table locked": Nemesis._lock_table,
    "machine cut off": Nemesis._cut_machine_off, "machine stopped": Nemesis._stop_machine, "reboot": Nemesis._reboot,
    "operator": Nemesis._operate,
}  # fmt: skip
