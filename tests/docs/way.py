"""
Which modules a job passes from ``client.submit`` to COMPLETED, measured: a real system, with a hook in every process.

The table in docs/architecture.md is written by this. Half of the jobs can start at once, the others have to wait a
moment. A module is on the way if it is called for most of the jobs of one kind; what is called for a few of them
belongs to a loop in the background. The table has the stations: the modules on the way that are no helpers.

usage: python -m tests.docs.way
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs import profile_hook
from tests.support.checking.markdown import table
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import END_S, ROOT, Jobs, Whole, place
from tests.support.waiting import until

PAGE: Final = ROOT / "docs" / "architecture.md"
MARKERS: Final = ("<!-- the way, measured: python -m tests.docs.way -->", "<!-- end of the way -->")
AT_ONCE: Final = range(1, 9)  # numbers of the jobs that a free worker can take
LATER: Final = range(9, 17)  # and of those that become due a little later
WARM_UP: Final = 100  # what the first job of all has imported and prepared is not on the way
DELAY_S: Final = 0.05
# Not on the way of a job that starts at once, although called for most of them.
AFTERWARDS: Final[Mapping[str, str]] = dict.fromkeys(
    ("actors/pulse_actors/dispatcher/claims/cursors.py", "actors/pulse_actors/dispatcher/claims/loop.py"),
    "the claim loop looks for more work whenever a worker has room again",
)
BACKGROUND: Final = "pulse/worker/session/prefetch.py"  # looks every 250 ms at how many jobs have ended
MAX_STATIONS: Final = 30
MAX_HELPERS: Final = 21
# Called on the way, and no stations: a job is not handed to them, and they decide nothing about it.
HELPERS: Final[Mapping[str, str]] = {
    "pulse/app/parameters.py": "pure: args to the types of a handler's parameters",
    "pulse/common/waiting.py": "wakes tasks, and knows whose turn it is to use a connection of the pool",
    "pulse/common/histogram.py": "pure: counts a duration",
    "pulse/common/ids.py": "pure: makes ids, and reads the time in them",
    "pulse/common/json_text.py": "pure: values to JSON text and back",
    "pulse/system/sockets/unix_stream.py": "bytes in and out",
    "pulse/common/wire_values.py": "pure: values of callers to those of the wire",
    "pulse/protocol/messages.py": "pure: whether a result is well formed",
    "pulse/store/arguments.py": "pure: rows to arrays",
    "actors/pulse_actors/shared/duty_cycle.py": "pure: how long to rest",
    "actors/pulse_actors/shared/json_size.py": "pure: how long JSON becomes",
    "pulse/store/connections/pool.py": "lends a connection to the statement",
    "pulse/store/connections/session.py": "the connection that is lent",
    "pulse/store/connections/usage.py": "counts how the pool is used",
    "pulse/store/failures.py": "notes that a statement succeeded",
    "pulse/store/recovery/timelines.py": "whether a connection of the pool leads to the right server",
    "actors/pulse_actors/dispatcher/monitoring/counters.py": "observer: counts",
    "actors/pulse_actors/dispatcher/monitoring/observe.py": "observer: chooses what is counted",
    "pulse/app/tracing.py": "observer: reads the current span",
    "actors/pulse_actors/runtime/actor.py": "back-off of the claim loop after errors",
}
END: Final = ("pulse/worker/session/ledger.py", "reported")  # the worker hears that its report is written
ROLES: Final[Mapping[str, str]] = {  # by a word of the command line of the process
    "client": " submit-one-by-one",
    "dispatcher": " dispatcher ",
    "worker": "handler_process.py",
}
CLIENT: Final = """
import sys, pulse
with pulse.Client(sys.argv[1]) as client:
    for line in sys.stdin:
        print(client.submit("greet", topic="way", delay_s=float(line)), flush=True)
"""
APP: Final = """
import pulse
app = pulse.App()
@app.handler("greet", topic="way")
async def greet() -> str:
    return "hello"
"""


class Stop(NamedTuple):
    role: str
    path: str


@dataclass(frozen=True, slots=True)
class Way:
    """
    What was called while the jobs were on their way.

    Attributes:
        calls: By the job's number: role and path of each module.
        functions: All that were called, as (path, qualified name).
    """

    calls: Mapping[int, AbstractSet[Stop]]
    functions: AbstractSet[tuple[str, str]]

    def helpers(self) -> AbstractSet[str]:
        return {stop.path for stop in self._mostly(AT_ONCE) | self._mostly(LATER)} & HELPERS.keys()

    def always(self, jobs: range) -> AbstractSet[Stop]:
        return _stations(frozenset.intersection(*(frozenset(self.calls[job]) for job in jobs)))

    def ever(self, jobs: range) -> AbstractSet[Stop]:
        return _stations(frozenset[Stop]().union(*(self.calls[job] for job in jobs)))

    def mostly(self, jobs: range) -> AbstractSet[Stop]:
        return _stations(self._mostly(jobs))

    def _mostly(self, jobs: range) -> AbstractSet[Stop]:
        times = Counter(stop for job in jobs for stop in self.calls[job])
        return {stop for stop, number in times.items() if number > len(jobs) / 2}


def _stations(stops: AbstractSet[Stop]) -> AbstractSet[Stop]:
    return {stop for stop in stops if stop.path not in HELPERS and stop.path != BACKGROUND}


def measure(dsn: str | None) -> Way:
    """Run the jobs, one after the other, on a system of its own; without a *dsn* on the embedded PostgreSQL."""
    with short_directory() as directory, place(dsn) as system:
        (directory / profile_hook.SWITCH).write_bytes(b"\0")
        (directory / "sitecustomize.py").write_bytes(Path(profile_hook.__file__).read_bytes())
        (directory / "way_app.py").write_text(APP, "utf-8")
        directory.chmod(0o755)
        system.env |= {
            profile_hook.DIRECTORY: str(directory),
            profile_hook.ROOT: str(ROOT),
            "PYTHONPATH": os.pathsep.join([str(directory), system.env["PYTHONPATH"]]),
        }
        system.start()
        system.pool("--processes", "1", app="way_app:app", cwd=directory)
        look = system.jobs()
        with _client(system) as client:
            for number in (WARM_UP, *AT_ONCE, *LATER):
                _run_one(look, client, directory, number)
        return _read(directory)


@contextlib.contextmanager
def _client(system: Whole) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CLIENT, str(system.path), "submit-one-by-one"]
    with subprocess.Popen(
        command, env=system.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as client:
        yield client
        assert client.stdin is not None
        client.stdin.close()
        assert client.wait(END_S) == 0


def _run_one(look: Jobs, client: subprocess.Popen[str], directory: Path, number: int) -> None:
    _switch(directory, number)
    job = _submit(client, DELAY_S if number in LATER else 0.0)

    def is_reported() -> bool:
        return any((number, *END) == (job, path, name.rpartition(".")[2]) for job, path, name, _ in _lines(directory))

    until(is_reported, "the worker hears that its report is written", END_S)
    _switch(directory, 0)
    assert look.get(job).status == "COMPLETED"


def _submit(client: subprocess.Popen[str], delay_s: float) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{delay_s}\n")
    client.stdin.flush()
    job = client.stdout.readline().strip()
    assert job, "the client has ended"
    return job


def _switch(directory: Path, number: int) -> None:
    with (directory / profile_hook.SWITCH).open("r+b") as file:
        file.write(bytes([number]))


def _lines(directory: Path) -> Iterator[tuple[int, str, str, str]]:
    for path in directory.glob("*.calls"):
        text = path.read_text("utf-8")
        for line in text[: text.rfind("\n") + 1].splitlines():  # the last one may be half written
            number, module, function, program = line.split("\t")
            yield int(number), module, function, program


def _read(directory: Path) -> Way:
    calls: defaultdict[int, set[Stop]] = defaultdict(set)
    functions: set[tuple[str, str]] = set()
    for number, path, function, program in _lines(directory):
        if number == WARM_UP:
            continue
        calls[number].add(Stop(_role(program), path))
        functions.add((path, function))
    return Way(calls, functions)


def _role(program: str) -> str:
    return next((role for role, word in ROLES.items() if word in f"{program} "), program)


def lines_of(way: Way) -> list[str]:
    roles: defaultdict[str, list[str]] = defaultdict(list)
    at_once = {stop for stop in way.mostly(AT_ONCE) if stop.path not in AFTERWARDS}
    for stop in sorted(at_once | way.mostly(LATER), key=lambda stop: ([*ROLES, stop.role].index(stop.role), stop.path)):
        roles[stop.path].append(stop.role if stop in at_once else f"{stop.role}, later")
    rows = (f"| `{short(path)}` | {', '.join(found)} | {purpose_of(path)} |" for path, found in roles.items())
    return [count_of(way), "", "| module | process | what it does |", "|---|---|---|", *rows]


def count_of(way: Way) -> str:
    at_once = {stop.path for stop in way.mostly(AT_ONCE) if stop.path not in AFTERWARDS}
    waits = at_once | {stop.path for stop in way.mostly(LATER)}
    return f"A job that starts at once passes {len(at_once)} modules, one that waits {len(waits)}:"


def short(path: str) -> str:
    return path.removeprefix("actors/pulse_actors/")


def purpose_of(path: str) -> str:
    package = (ROOT / path).parent / "__init__.py"
    listed = ast.get_docstring(ast.parse(package.read_text("utf-8"))) or ""
    found = re.search(rf"^- {Path(path).stem}: (.+)$", listed, re.MULTILINE)
    assert found, f"{package} says nothing of {path}"
    return found[1]


def parts_of(page: str) -> tuple[str, str, str]:
    before, start, rest = page.partition(f"{MARKERS[0]}\n")
    between, end, behind = rest.partition(f"{MARKERS[1]}\n")
    return before + start, between, end + behind


def shown_on(page: str) -> list[tuple[Stop, bool]]:
    """What the table of *page* has: each stop, and whether only a job that waits makes it."""
    found: list[tuple[Stop, bool]] = []
    for row in table(parts_of(page)[1]):
        path = row["module"] if row["module"].startswith("pulse/") else f"actors/pulse_actors/{row['module']}"
        words = row["process"].split(", ")
        later = words[-1] == "later"
        found += [(Stop(role, path), later) for role in words if role != "later"]
    return found


def said_on(page: str) -> tuple[int, int]:
    found = re.search(r"passes (\d+) modules, one that waits (\d+):", parts_of(page)[1])
    assert found, "the page does not say how many stations there are"
    return int(found[1]), int(found[2])


def faults_of(way: Way, page: str) -> list[str]:
    """How the table of *page* differs from what was measured."""
    shown = dict(shown_on(page))
    later = way.always(LATER) - shown.keys()
    at_once = {stop for stop in way.always(AT_ONCE) if stop.path not in AFTERWARDS and shown.get(stop, True)}
    never = {stop for stop, waits in shown.items() if stop not in way.ever(LATER if waits else AT_ONCE)}
    return [
        *(
            f"{stop.path} is called in the {stop.role}: the table lacks it, or has it as later"
            for stop in later | at_once
        ),
        *(f"{stop.path} is not called in the {stop.role}, or only later" for stop in never),
    ]


def main() -> None:
    before, _, behind = parts_of(PAGE.read_text("utf-8"))
    written = "\n".join(lines_of(measure(None)))
    PAGE.write_text(f"{before}{written}\n{behind}", "utf-8")


if __name__ == "__main__":
    main()
