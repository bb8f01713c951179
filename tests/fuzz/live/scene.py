"""A system with a healthy worker and a healthy client, their attackers, and the verdict."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Final
from uuid import UUID

import msgspec

from tests.fuzz.live.app import LIMITED, MOST, MOST_OF_GROUP, TOPIC
from tests.fuzz.live.attacker import ID_BYTES, Orders
from tests.fuzz.live.gauges import Turns, Window, latencies, settled, use, uses
from tests.fuzz.live.verdict import MORE_FDS, UNFORESEEN, Measured, most_at_once
from tests.support.systems.system_kit import ACTORS, ROOT, Whole
from tests.support.waiting import until

APP: Final = "tests.fuzz.live.app:app"
SETTINGS: Final = {"PULSE_LOG_LEVEL": "info", "PULSE_OBEY_S": "1"}
END_S: Final = 60.0
SETTLE_S: Final = 10.0  # of a rest: ignored attempts are over by then, and readers of answers have gone
NICE: Final = 10
TELL_S: Final = 5.0
SHARES: Final = (("clients", 0.3), ("clients", 0.3), ("workers", 0.35), ("operators", 0.05))  # one process each
_HEALTHY: Final = """
    SELECT id, status::text AS status, attempts, result->>'attempt' AS told, (result->>'n')::int AS n, group_key,
        started_at, completed_at
    FROM pulse.jobs WHERE topic = $1"""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How much of everything.

    Attributes:
        rate: Frames a second, of all attackers together; None: as many as the server takes.
        visits: Connections a second, likewise.
        quiet_s: How long each quiet time is: before, after, and in between.
        connections: How many are opened and dropped.
        slots: How many connections attack at once.
        times: Allowed slowdown against quiet; then attackers have only the processors that others leave. None: any.
    """

    seed: int
    frames: int = 1_000_000
    rate: float | None = None
    visits: float | None = None
    quiet_s: float = 20.0
    attack_s: float = 180.0
    connections: int = 10_000
    slots: int = 48
    times: float | None = 2.0


@dataclass(slots=True)
class Attackers:
    """Processes that attack; one that the dispatcher has killed starts again. If *is_idle*, they are nice."""

    directory: Path
    show: Callable[[str], None]
    is_idle: bool
    sent: Counter[str] = field(default_factory=Counter[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    complaints: list[Mapping[str, object]] = field(default_factory=list[Mapping[str, object]])
    killed: int = 0
    failed: list[str] = field(default_factory=list[str])
    _at_work: set[subprocess.Popen[str]] = field(default_factory=set[subprocess.Popen[str]])
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, orders: Sequence[Orders], look: Callable[[], None], enough: int | None = None) -> None:
        """Run them all; one that is left alone at work only until *enough* frames were read."""
        self._is_over.clear()
        threads = [threading.Thread(target=self._one, args=(one,), daemon=True) for one in orders]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            look()
            if enough is not None and self.sent["read"] >= enough and len(self._at_work) <= 1:
                self._is_over.set()
                for process in [*self._at_work]:
                    process.kill()
            threads[0].join(0.2)
            for thread in threads:
                thread.join(0.01)

    def _one(self, orders: Orders) -> None:
        # This thread, and with it the processes that it starts. Attackers that share the processors with the server
        # would measure the scheduler of the machine: where none of them is ever without work the kernel leaves what
        # waits behind somebody on one of them alone until its next tick, even if the others have nothing but these.
        if self.is_idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        else:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        rng = random.Random(orders.seed)
        while not self.failed and not self._is_over.is_set():
            with self._started(orders) as process:
                assert process.stdout is not None
                read, visits = self._follow(process.stdout, orders.plan)
                code = process.wait(END_S)
            if code == 0 or self._is_over.is_set():
                return
            if code not in {-signal.SIGKILL, -signal.SIGTERM}:
                self.failed.append(f"an attacker ({orders.plan}) ended with {code}")
                return
            self.killed += 1
            frames = None if orders.frames is None else orders.frames - read
            left = None if orders.visits is None else orders.visits - visits
            if min(one for one in (frames, left) if one is not None) <= 0:
                return
            orders = msgspec.structs.replace(orders, frames=frames, visits=left, seed=rng.getrandbits(32))

    @contextlib.contextmanager
    def _started(self, orders: Orders) -> Iterator[subprocess.Popen[str]]:
        with (self.directory / "attackers").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.live.attacker", msgspec.json.encode(orders).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                text=True,
                start_new_session=True,  # a kill is for its whole group
            )
        self._at_work.add(process)
        try:
            with process:
                yield process
        finally:
            self._at_work.discard(process)
            process.kill()

    def _follow(self, lines: IO[str], plan: str) -> tuple[int, int]:
        before = Counter[str]()
        answered = Counter[str]()
        for line in lines:
            try:
                told = json.loads(line)
            except json.JSONDecodeError:  # it was killed within it
                break
            if "complaint" in told:
                self.complaints.append(told["complaint"])
                continue
            now = Counter({name: int(told[name]) for name in ("read", "sent", "connections", "refused")})
            self.sent += now - before
            self.sent[plan] += now["read"] - before["read"]
            self.answers += Counter(told["answers"]) - answered
            before, answered = now, Counter(told["answers"])
        return before["read"], before["connections"]


class Scene:
    def __init__(self, whole: Whole, plan: Plan, show: Callable[[str], None]) -> None:
        self._whole = whole
        self._plan = plan
        self._show = show
        self._directory = whole.directory / "fuzz"
        self._attackers = Attackers(self._directory, show, plan.times is not None)
        self._peak_bytes = 0
        self._quiet: list[Window] = []
        self._told_s = 0.0

    def run(self) -> Measured:
        plan, whole = self._plan, self._whole
        self._directory.mkdir()
        whole.start()
        limit = {"concurrency": MOST, "group_concurrency": MOST_OF_GROUP}
        whole.rows("SELECT pulse.set_limit($1, NULL, $2::text::jsonb)", LIMITED, json.dumps(limit))
        topics = ("--topic", TOPIC, "--topic", LIMITED)
        pool = whole.pool("--processes", "1", "--concurrency", "8", *topics, app=APP)
        pids = self._pids()
        with self._healthy() as healthy:
            until(self._is_measured, "the healthy client is at work", END_S)
            self._rest(plan.quiet_s)
            before = uses(pids)
            self._show(f"quiet; dispatcher {before['dispatcher'].rss_bytes / 2**20:.1f} MiB")
            windows = {"attacked": self._attack(pids["dispatcher"])}
            if plan.connections:
                windows["crowded"] = self._crowd(pids["dispatcher"])
            after = settled(pids, before, MORE_FDS)
            self._rest(plan.quiet_s)
            after = {name: now if now.fds < after[name].fds else after[name] for name, now in uses(pids).items()}
            assert healthy.poll() is None, self._said("client")
        assert pool.process.poll() is None, pool.said
        return Measured(
            before=before,
            after=after,
            peak_bytes=self._peak_bytes,
            quiet=self._latencies(self._quiet),
            attacked={name: self._latencies(some) for name, some in windows.items()},
            pids=(pids, self._pids()),
            frames=self._attackers.sent["read"],
            wanted=plan.frames,
            connections=self._attackers.sent["connections"],
            restarts=sum(row["restarts"] for row in whole.ask_supervisor("status")["actors"]),
            complaints=self._attackers.complaints,
            unforeseen=[*self._unforeseen(), *self._attackers.failed],
            jobs=[*self._jobs(), *self._faults(LIMITED, self._ids("limited"))],
            limit=self._at_once(),
            checked=self._checked(),
            times=plan.times,
            details={
                "seed": plan.seed, "answers": dict(self._attackers.answers), "sent": dict(self._attackers.sent),
                "attackers_killed": self._attackers.killed,
                "attack_s": sum(one.end_s - one.begin_s for one in windows["attacked"]),
                "quiet_s": sum(one.end_s - one.begin_s for one in self._quiet), "log": dict(self._events()),
            },
        )  # fmt: skip

    # What happens.

    def _rest(self, seconds: float) -> None:
        began_s = time.monotonic()
        until(lambda: time.monotonic() >= began_s + seconds, "the time", seconds + END_S)
        self._quiet.append(Window(began_s, time.monotonic()))

    def _attack(self, dispatcher: int) -> list[Window]:
        plan, turns = self._plan, self._turns()
        orders = [
            self._orders(
                kind, number, turns, frames=int(plan.frames * share) + 1,
                slots=min(8, plan.slots) if kind == "operators" else max(1, int(plan.slots * share)),
                rate=None if plan.rate is None else plan.rate * share,
            )
            for number, (kind, share) in enumerate(SHARES)
        ]  # fmt: skip
        return self._run(orders, turns, dispatcher, plan.frames)

    def _crowd(self, dispatcher: int) -> list[Window]:
        turns = self._turns()
        half = self._orders("crowd", 10, turns, visits=self._plan.connections, slots=300, rate=self._plan.visits)
        tenth = None if self._plan.visits is None else self._plan.visits / 10
        few = self._orders("crowd", 11, turns, visits=self._plan.connections // 10, slots=80, rate=tenth)
        operators = str(self._whole.runtime_dir / "supervisor.sock")
        return self._run([half, msgspec.structs.replace(few, path=operators)], turns, dispatcher)

    def _turns(self) -> Turns:
        return Turns(time.monotonic(), self._plan.attack_s, self._plan.quiet_s + SETTLE_S, SETTLE_S)

    def _run(self, orders: Sequence[Orders], turns: Turns, dispatcher: int, enough: int | None = None) -> list[Window]:
        self._attackers.run(orders, lambda: self._look(dispatcher, turns.begin_s), enough)
        attacked, quiet = turns.windows(time.monotonic())
        self._quiet += quiet
        return attacked

    def _orders(self, plan: str, number: int, turns: Turns, **more: object) -> Orders:
        socket = "supervisor.sock" if plan == "operators" else "pulse.sock"
        path = str(self._whole.runtime_dir / socket)
        seed, directory = self._plan.seed * 100 + number, str(self._directory)
        orders = {"plan": plan, "path": path, "seed": seed, "directory": directory, "turns": msgspec.to_builtins(turns)}
        return msgspec.convert({**orders, **more}, Orders)

    def _look(self, dispatcher: int, began_s: float) -> None:
        self._peak_bytes = max(self._peak_bytes, use(dispatcher).rss_bytes)
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_S:
            self._told_s = now_s
            sent = self._attackers.sent
            self._show(
                f"{now_s - began_s:6.0f} s  {sent['read']:>9,} frames  {sent['connections']:>7,} connections  "
                f"dispatcher {self._peak_bytes / 2**20:.1f} MiB at most  {len(self._attackers.complaints)} complaints"
            )

    @contextlib.contextmanager
    def _healthy(self) -> Iterator[subprocess.Popen[bytes]]:
        words = [str(self._whole.path), str(self._whole.runtime_dir / "supervisor.sock"), str(self._directory)]
        with (self._directory / "client").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.live.healthy", *words], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=errors, cwd=ROOT,
            )  # fmt: skip
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(END_S) == 0, self._said("client")
        finally:
            process.kill()
            process.wait(END_S)

    def _said(self, file: str) -> str:
        return (self._directory / file).read_text("utf-8", "replace")

    def _is_measured(self) -> bool:
        file = self._directory / "latencies"
        return file.exists() and len(file.read_text("ascii").splitlines()) > 200  # past its first steps

    # What became of it.

    def _pids(self) -> dict[str, int]:
        rows = {row["name"]: row["pid"] for row in self._whole.ask_supervisor("status")["actors"]}
        assert self._whole.process is not None
        return {"supervisor": self._whole.process.pid, **{name: rows[name] for name in ACTORS}}

    def _latencies(self, windows: Sequence[Window]) -> dict[str, list[float]]:
        return latencies(self._directory / "latencies", windows)

    def _log(self) -> Iterator[dict[str, object]]:
        for line in self._whole.errors.read_text("utf-8", "replace").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                yield {"event": "not JSON", "level": "error", "line": line}

    def _events(self) -> Counter[str]:
        return Counter(f"{entry.get('level')} {entry.get('event')}" for entry in self._log())

    def _unforeseen(self) -> list[str]:
        return [
            json.dumps(entry)
            for entry in self._log()
            if entry.get("event") in UNFORESEEN
            or entry.get("level") in {"error", "critical"}
            or "exception" in entry
            or "Traceback" in str(entry.get("line", ""))
        ]

    def _jobs(self) -> list[str]:
        wrong = self._faults(TOPIC, self._ids("healthy"))
        lost = {UUID(bytes=one) for one in {*self._ids("acked")} - {*self._ids("deleted")}}
        lost -= {row["id"] for row in self._whole.rows("SELECT id FROM pulse.jobs")}
        return wrong + [f"acknowledged and gone: {one}" for one in lost]

    def _faults(self, topic: str, submitted: Sequence[bytes]) -> list[str]:
        """Each was completed at its first attempt, with its own number."""

        def are_done() -> bool:
            return not self._whole.rows(
                "SELECT 1 FROM pulse.jobs WHERE topic = $1 AND completed_at IS NULL LIMIT 1", topic
            )

        until(are_done, "the healthy client's jobs are done", END_S)
        wrong: list[str] = []
        rows = {row["id"]: row for row in self._whole.rows(_HEALTHY, topic)}
        for number, one in enumerate(submitted, 1):
            row = rows.pop(UUID(bytes=one), None)
            expected = ("COMPLETED", 1, "1", number)
            if row is None or (row["status"], row["attempts"], row["told"], row["n"]) != expected:
                wrong.append(f"healthy job {number}: {None if row is None else dict(row)}")
        return wrong + [f"nobody submitted {identity}" for identity in rows]

    def _at_once(self) -> list[tuple[str, int, int]]:
        """How many jobs under the limit ran at once, by the times of their rows."""
        spans: dict[str | None, list[tuple[datetime, datetime]]] = {}
        for row in self._whole.rows(_HEALTHY, LIMITED):
            spans.setdefault(row["group_key"], []).append((row["started_at"], row["completed_at"]))
        groups = [most_at_once(some) for group, some in spans.items() if group is not None]
        in_all = most_at_once(itertools.chain(*spans.values()))
        return [("in all", in_all, MOST), ("of a group", max(groups, default=0), MOST_OF_GROUP)]

    def _ids(self, name: str) -> list[bytes]:
        file = self._directory / name
        data = file.read_bytes() if file.exists() else b""
        return [data[at : at + ID_BYTES] for at in range(0, len(data) - ID_BYTES + 1, ID_BYTES)]

    def _checked(self) -> list[str]:
        done = self._whole.command("check", "--dsn", self._whole.dsn, "--json")
        found = json.loads(done.stdout)
        return [
            f"{one['name']}: {one['state']} {one.get('examples')}"
            for one in found["checks"]
            if one["state"] not in {"ok", "skipped"}
        ]
