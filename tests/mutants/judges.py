"""Which tests may judge a mutant of a module: those in files whose imports lead to it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Final

from pulse.store.statements import STATEMENTS
from tests.mutants.source import ROOT, SCHEMA, modules, path_of, text_of
from tests.mutants.sql_operators import FUNCTION

_MIRRORS: Final = {"pulse": "tests/pulse", "pulse_supervisor": "tests/supervisor", "pulse_actors": "tests/actors"}
FOLDERS: Final = (*_MIRRORS.values(), "tests/schema")
# Code that runs in processes of its own is judged by the system tests of its folder and of the one above, and by these.
PROCESSES: Final[dict[str, tuple[str, ...]]] = {
    "pulse": ("tests/packaging/test_pulse.py",),
    "pulse.cli.admin.ui": ("tests/pulse/ui/auth/test_rules.py",),
    "pulse.client.login": ("tests/actors/dispatcher/net/test_tls_system.py",),
    "pulse.logs": ("tests/system/faults/test_logs_system.py",),
    "pulse.security.credentials": ("tests/pulse/ui/auth/test_rules.py",),
    "pulse.security.grants": ("tests/actors/dispatcher/net/test_access_system.py",),
    "pulse.security.tls": ("tests/actors/dispatcher/net/test_tls_system.py",),
    "pulse.worker.__main__": ("tests/system/test_bad_input_system.py",),
    "pulse.worker.pool.proxy_heartbeat": ("tests/pulse/worker/session/test_heartbeat_system.py",),
    "pulse_actors.dispatcher.main": (
        "tests/actors/dispatcher/liveness/test_startup_system.py",
        "tests/actors/dispatcher/liveness/test_silent_workers_system.py",
        "tests/actors/dispatcher/liveness/test_hung_handlers_system.py",
    ),
    "pulse_actors.dispatcher.net.session": ("tests/system/test_encryption_system.py",),
    "pulse_actors.dispatcher.requests.schedules": ("tests/system/test_encryption_system.py",),
    "pulse_actors.dispatcher.requests.table": ("tests/actors/dispatcher/workers/test_workers_system.py",),
    "pulse_actors.runtime.template": (
        "tests/supervisor/children/test_template.py",
        "tests/supervisor/children/test_template_system.py",
    ),
    "pulse_actors.runtime.actor": ("tests/pulse/store/connections/test_pooler_system.py",),
    "pulse_supervisor.control.server": ("tests/actors/dispatcher/net/test_access_system.py",),
    "pulse_supervisor.preflight": ("tests/actors/dispatcher/net/test_tls_system.py",),
    "pulse_supervisor.supervisor": (
        "tests/supervisor/control/test_server_system.py",
        "tests/supervisor/postgres/test_child_system.py",
    ),
    "pulse_supervisor.sockets": ("tests/actors/dispatcher/net/test_access_system.py",),
}
_DEFINES: Final = re.compile(r"CREATE FUNCTION pulse\.(\w+)\(")  # a short one is part of the text of the next
TABLES: Final = frozenset(  # those that judge tables and indexes
    f"tests/pulse/store/{name}_pg.py"
    for name in ("admin/test_schema", "admin/test_indexes", "sql/test_plans", "sql/test_limit_plans")
)
_PART: Final = re.compile(r"(?:INSERT INTO|DELETE FROM) pulse\.\w+|pulse\.\w+\(")
_FAR: Final = 4  # steps, from one module to what it imports


@functools.cache
def files() -> tuple[str, ...]:
    found = (path.relative_to(ROOT) for one in FOLDERS for path in (ROOT / one).glob("**/test_*.py"))
    return tuple(sorted(name for name in map(str, found) if not starts_processes(name)))


def starts_processes(test: str) -> bool:
    return test.partition("::")[0].endswith("_system.py")


def files_for(wanted: Iterable[str]) -> list[str]:
    """
    Those that import one of the modules *wanted*, or have the shortest way to it.

    Nearest first, and of those the ones in the folder of such a module: where time is short, the others are left out.
    """
    wanted = set(wanted)
    homes = {str(path.relative_to(ROOT)) for module in wanted for path in _folders(module)[:1]}
    ways = {file: _ways(file) for file in files()}
    near: dict[str, int] = {}
    for module in wanted:
        steps = min((way[module] for way in ways.values() if module in way), default=_FAR)
        for file, way in ways.items():
            if module in way and way[module] <= max(1, steps):
                near[file] = min(way[module], near.get(file, _FAR))
    started = {file for module in wanted for file in processes_for(module)}
    order = {file: (steps, str(PurePath(file).parent) not in homes, file) for file, steps in near.items()}
    return [*sorted(near, key=order.__getitem__), *sorted(started)]


@functools.cache
def processes_for(module: str) -> tuple[str, ...]:
    """Those that see a mutant of it in a process that they start."""
    found = [str(path.relative_to(ROOT)) for one in _folders(module) for path in sorted(one.glob("test_*_system.py"))]
    return (*found, *PROCESSES.get(module, ()))


@functools.cache
def begin_of(module: str) -> str:
    """How the paths of its own tests begin."""
    package, *inner = module.split(".")
    return "/".join([_MIRRORS[package], *inner[:-1], f"test_{inner[-1] if inner else package}"])


@functools.cache
def own_of(where: str, scope: str) -> tuple[str, ...]:
    """How the paths of the tests begin that are about a text; of a statement: that name it, or whose module does."""
    if where == SCHEMA:
        return tuple(sorted(files_about(scope)))
    if where in modules():
        return (begin_of(where),)
    name = where.rpartition(".")[2]
    naming = [file for file in files() if file.endswith("_pg.py") and re.search(rf"\b{name}\b", _text(file))]
    return (*naming, *(begin_of(one) for one in modules() if f'"{name}"' in text_of(one)))


def _folders(module: str) -> list[Path]:
    """Where its tests are, and the folder above."""
    package, *inner = module.split(".")
    return [
        ROOT.joinpath(_MIRRORS[package], *inner[:depth]) for depth in (len(inner) - 1, len(inner) - 2) if depth >= 0
    ]


@functools.cache
def files_about(function: str) -> frozenset[str]:
    """Those that name a function of the schema, or lead to it; without one: those that are about tables."""
    return frozenset(file for file in files() if _names(file, function)) if function else TABLES


def _names(file: str, function: str) -> bool:
    """
    Whether a test file names a function of the schema, one that calls it, or a statement of the store that does.

    Who writes to the table of a trigger calls its function.
    """
    text = _text(file)
    calls = [*(f"pulse.{one}(" for one in _callers(function)), *_writes(function)]
    return any(one in text for one in (*_callers(function), *_writes(function))) or any(
        known.name in text and any(call in known.sql for call in calls) for known in STATEMENTS.values()
    )


@functools.cache
def parts_of(query: str) -> frozenset[str]:
    """What of a query calls functions of the schema, or fires triggers: see ``parts_for``."""
    return frozenset(_PART.findall(query))


@functools.cache
def parts_for(function: str) -> frozenset[str]:
    """The parts of queries that lead to a function of the schema; none, if a table or an UPDATE calls it by itself."""
    rest = re.sub(r"REVOKE[^;]*;", "", FUNCTION.sub("", text_of(SCHEMA)))
    if not function or rest.count(f"pulse.{function}(") > len(_writes(function)):
        return frozenset()
    texts = [match[0] for match in FUNCTION.finditer(text_of(SCHEMA)) if match[1] == function]
    callers = {caller for text in texts for one in _DEFINES.findall(text) for caller in _callers(one)}
    return frozenset(part for one in callers for part in (f"pulse.{one}(", *_writes(one)))


@functools.cache
def _callers(function: str) -> frozenset[str]:
    bodies = {name: match[0] for match in FUNCTION.finditer(text_of(SCHEMA)) for name in _DEFINES.findall(match[0])}
    found, new = set[str](), {function}
    while new:
        found |= new
        calls = [call for one in new for call in (f"pulse.{one}(", *_writes(one))]
        new = {name for name, body in bodies.items() if any(call in body for call in calls)} - found
    return frozenset(found)


@functools.cache
def _writes(function: str) -> list[str]:
    """How the writes begin that fire the triggers of a function of the schema."""
    fired = re.finditer(rf"TRIGGER \w+ AFTER (INSERT|DELETE) ON (pulse\.\w+)[^;]*pulse\.{function}\(", text_of(SCHEMA))
    return [f"{'INSERT INTO' if one[1] == 'INSERT' else 'DELETE FROM'} {one[2]}" for one in fired]


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
