"""What a supervisor and a service manager do on one machine: start the actors and the workers, and start them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from pulse.config import Settings
from pulse.errors import UnavailableError
from pulse.store.store import Store
from pulse_actors.dispatcher.main import dispatcher
from pulse_actors.runtime.actor import ActorMain, Runtime
from pulse_actors.runtime.bus import Bus, Hint
from pulse_actors.watchdog.actor import watchdog
from tests.simulation.machine.machine import OWN_UID
from tests.simulation.machine.parent import Parent
from tests.simulation.machine.process import Process
from tests.simulation.machine.worker import Worker
from tests.simulation.rows.store import FakeStore
from tests.simulation.scenario import Slot

if TYPE_CHECKING:
    from tests.simulation.machine.machine import Machine
    from tests.simulation.world import World

LOST_HINTS: Final = 0.1
LISTEN_FD: Final = 3
MAINS: Final[dict[str, Callable[[], ActorMain]]] = {
    "watchdog": lambda: watchdog,
    "dispatcher": lambda: dispatcher(LISTEN_FD),
}


class SimulatedBus:
    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._name = name

    async def send(self, _kind: str, _request: int | None, _body: dict[str, object]) -> None:
        """To the supervisor, which wants to know nothing here."""

    async def hint(self, hint: Hint) -> None:
        world = self._site.world
        if world.chance.random() > LOST_HINTS:
            passed_on = Hint(self._name, hint.event, hint.data)
            world.timers.after(world.chance.uniform(0.0, 0.01), lambda: self._site.tell(hint.peer, passed_on))


class Site:
    def __init__(self, world: World, machine: Machine, slots: list[Slot]) -> None:
        self.world = world
        self.machine = machine
        self.actors: dict[str, Process] = {}
        self._runtimes: dict[str, Runtime] = {}
        self._slots = slots
        self._count = 0
        self._settings = self._of_this_machine()
        self.workers: dict[str, Process] = {}
        self._parents: dict[str, tuple[Process, Parent]] = {}

    def _of_this_machine(self) -> Settings:
        values: dict[str, Any] = {name: getattr(self.world.settings, name) for name in Settings.__struct_fields__}
        return Settings(**{**values, "host_id": self.machine.name})

    def start(self) -> None:
        for name in MAINS:
            self._start_actor(name, boot=True)
        for slot in self._slots:
            self._start_worker(slot)

    def _start_actor(self, name: str, *, boot: bool) -> None:
        boots = self.machine.boots

        async def main(_process: Process) -> int:
            bus, store = cast("Bus", SimulatedBus(self, name)), cast("Store", FakeStore(self.world.database))
            runtime = self._runtimes[name] = Runtime(name, bus, self._settings, store, boot=boot)
            try:
                await MAINS[name]()(runtime)
            except UnavailableError:
                if not boot:
                    raise
                return 1 << 8  # away for all of its first seconds: the service manager starts it again
            return 0

        def again() -> None:
            if self.machine.boots == boots:
                self._start_actor(name, boot=False)

        self.actors[name] = self.machine.spawn(
            name, main, on_end=lambda: self.world.timers.after(self.world.chance.uniform(0.05, 0.4), again)
        )

    def tell(self, name: str, hint: Hint) -> None:
        runtime, process = self._runtimes.get(name), self.actors.get(name)
        if runtime is not None and process is not None and not process.dead:
            runtime.poke(hint)

    def stop_politely(self, name: str) -> None:
        runtime, process = self._runtimes.get(name), self.actors[name]
        if runtime is not None and not process.dead:
            runtime.stopping.set()
            runtime.poke(Hint("", ""))

    def _start_worker(self, slot: Slot) -> None:
        boots = self.machine.boots
        self._count += 1
        name = f"{slot.name}.{self._count}"
        parent = self._parent_of(slot) if slot.pooled else None

        async def main(process: Process) -> int:
            return await self.world.workers[name].main(process)

        def again() -> None:
            if self.machine.boots == boots:
                self._start_worker(slot)

        process = self.machine.spawn(
            name, main, uid=OWN_UID + 1 if slot.foreign == "uid" else OWN_UID,
            pidns=1 if slot.foreign == "pidns" else None, parent=None if parent is None else parent[0],
            leads_group=slot.leads_group,
            on_end=lambda: self.world.timers.after(self.world.chance.uniform(0.1, 1.5), again),
        )  # fmt: skip
        process.leaks = slot.leaks
        self.workers[slot.name] = process
        pool = None if parent is None else parent[1]
        if pool is not None:
            pool.added(process.pid)
        self.world.workers[name] = Worker(self.world, process, name, slot.names, slot.concurrency, pool)

    def _parent_of(self, slot: Slot) -> tuple[Process, Parent]:
        there = self._parents.get(slot.name)
        if there is not None and not there[0].dead:
            return there
        parent = Parent(self.world, f"{slot.name}.parent{self._count}")
        uid = OWN_UID + 1 if slot.foreign == "uid" else OWN_UID
        process = self.machine.spawn(
            f"{slot.name}.parent", parent.main, uid=uid, pidns=1 if slot.foreign == "pidns" else None
        )
        self._parents[slot.name] = process, parent
        return process, parent

    def reboot(self, down_s: float) -> None:
        self.machine.reboot()
        boots = self.machine.boots
        self.world.timers.after(down_s, lambda: self.start() if self.machine.boots == boots else None)

    @property
    def everybody(self) -> list[Process]:
        """All processes that live here, by pid."""
        return [one for one in self.machine.processes.values() if not one.dead]
