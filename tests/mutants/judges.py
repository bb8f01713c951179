"""Which tests may judge a mutant of a module: those in files whose imports lead to it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from typing import Final

from pulse.store.statements import STATEMENTS
from tests.mutants.source import ROOT, SCHEMA, modules, path_of, text_of
from tests.mutants.sql_operators import FUNCTION

FOLDERS: Final = ("tests/unit", "tests/store")
# What runs in processes of its own is judged by these, too: files of tests/process.
PROCESSES: Final[dict[str, tuple[str, ...]]] = {
    "pulse.client.login": ("test_tcp.py",),
    "pulse.logs": ("test_logging.py",),
    "pulse.security.grants": ("test_access.py",),
    "pulse.security.hide_password": ("test_commandline.py",),
    "pulse.security.tls": ("test_tcp.py",),
    "pulse.store.connections.pooler": ("test_poolers.py",),
    "pulse.worker.isolation.child": ("test_worker_cells.py",),
    "pulse.worker.pool.proxy_heartbeat": ("test_worker_beats.py",),
    "pulse.worker.service": ("test_worker_jobs.py",),
    "pulse_actors.dispatcher.main": ("test_reconcile.py", "test_silence.py", "test_overdue.py"),
    "pulse_actors.dispatcher.net.connection": ("test_tcp.py",),
    "pulse_actors.dispatcher.net.listener": ("test_tcp.py", "test_access.py"),
    "pulse_actors.dispatcher.net.peer": ("test_tcp.py",),
    "pulse_actors.dispatcher.net.session": ("test_access.py", "test_system_secrets.py"),
    "pulse_actors.dispatcher.requests.jobs": ("test_dispatcher_requests.py",),
    "pulse_actors.dispatcher.requests.schedules": ("test_system_secrets.py",),
    "pulse_actors.runtime.actor": ("test_poolers.py",),
    "pulse_supervisor.control.server": ("test_access.py",),
    "pulse_supervisor.preflight": ("test_tcp.py",),
    "pulse_supervisor.sockets": ("test_access.py", "test_supervisor_places.py"),
}
_FAR: Final = 4  # steps, from one module to what it imports


@functools.cache
def files() -> tuple[str, ...]:
    """All files of tests that run in one process, from the root."""
    return tuple(sorted(str(path.relative_to(ROOT)) for one in FOLDERS for path in (ROOT / one).glob("**/test_*.py")))


def files_for(wanted: Iterable[str]) -> list[str]:
    """Those that import one of the modules *wanted*, or have the shortest way to it; nearest first."""
    ways = {file: _ways(file) for file in files()}
    near: dict[str, int] = {}
    for module in wanted:
        steps = min((way[module] for way in ways.values() if module in way), default=_FAR)
        for file, way in ways.items():
            if module in way and way[module] <= max(1, steps):
                near[file] = min(way[module], near.get(file, _FAR))
    started = {file for module in wanted for file in processes_for(module)}
    return [*sorted(near, key=lambda file: (near[file], file)), *sorted(started)]


def processes_for(module: str) -> list[str]:
    """Those that see a mutant of it in a process that they start."""
    return [f"tests/process/{file}" for file in PROCESSES.get(module, ())]


def names(file: str, function: str) -> bool:
    """Whether a test file names a function of the schema, one that calls it, or a statement of the store that does."""
    text = _text(file)
    return any(
        one in text or any(f"pulse.{one}(" in known.sql and known.name in text for known in STATEMENTS.values())
        for one in _callers(function)
    )


@functools.cache
def _callers(function: str) -> frozenset[str]:
    """A function of the schema, and those that call it, directly or not."""
    bodies = {match[1]: match[0] for match in FUNCTION.finditer(text_of(SCHEMA))}
    found, new = set[str](), {function}
    while new:
        found |= new
        new = {name for name, body in bodies.items() if any(f"pulse.{one}(" in body for one in new)} - found
    return frozenset(found)


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


@functools.cache
def _ways(file: str) -> dict[str, int]:
    """Module -> how many modules of the product lead from *file* to it; those of the tests count for nothing."""
    found: dict[str, int] = {}
    ring, seen = {file}, set[str]()
    for steps in range(_FAR):
        free, ring = list(ring), set()
        while free:
            one = free.pop()
            if one in seen:
                continue
            seen.add(one)
            found[one] = steps
            for name in _imports(one):
                if name.startswith("tests."):
                    free.append(name)
                else:
                    ring.add(name)
    return found


@functools.cache
def _imports(one: str) -> frozenset[str]:
    if one.endswith(".py"):
        path = ROOT / one
    elif one.startswith("tests."):
        path = ROOT.joinpath(*one.split(".")).with_suffix(".py")
        if not path.is_file():
            return frozenset()
    else:
        path = path_of(one)
    known = set(modules())
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
            case _:
                pass
    return frozenset(name for name in found if name in known or name.startswith("tests."))
