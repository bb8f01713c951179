"""
Which queue a topic belongs to, where an application has several: ``[queues]`` and ``[routes]`` of the config file.

A queue is a server, with a schema of its own. A pattern is a topic, or the beginning of topics with ``*`` behind it.
The longest one that fits counts, and a topic itself before all beginnings, so no two patterns can contradict each
other. Pure.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from pulse.common.text import cut
from pulse.errors import BadRequestError, ConfigError
from pulse.security.schema_name import ALLOWED as SCHEMA_ALLOWED
from pulse.security.schema_name import DEFAULT, is_allowed
from pulse.system.sockets import addresses

__all__ = ["TABLES", "Queue", "Routes", "parse"]

TABLES: Final = ("queues", "routes")
_KEYS: Final = ("server", "schema", "dashboard")
_REST: Final = "*"
_LONGEST: Final = 200  # characters of a topic
_SHOWN: Final = 80  # characters of a wrong value in a message
_LIST: Final = 1000  # characters of all patterns in a message: there may be thousands
_SCHEMES: Final = ("tls", "tcp")
_MAY_HIDE: Final = re.compile("[@:=]")  # beside them passwords are written
_DASHBOARD: Final = re.compile(r"https?://[^\s@/?#]+(/[^\s@]*)?")
_SERVERS: Final = (
    "the path of a socket, unix:///PATH, tls://HOST:PORT or tcp://HOST:PORT is allowed, with USER@ but no password"
)


@dataclass(frozen=True, slots=True)
class Queue:
    """
    A queue that topics are routed to.

    Attributes:
        name: Its name in the config file.
        server: Its server, as ``pulse.connect`` takes it.
        schema: The schema that has it, for ``pulse.sql``.
        dashboard: The address of its dashboard, if it has one.
    """

    name: str
    server: str
    schema: str = DEFAULT
    dashboard: str | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """
    The queues of an application, and which topics each has. Made by ``pulse.load_routes``.

    Attributes:
        queues: The queues, by name.
        patterns: The name of a queue for each pattern of topics.
    """

    queues: Mapping[str, Queue]
    patterns: Mapping[str, str]

    def of(self, topic: str) -> Queue:
        """
        The queue of *topic*.

        Raises:
            BadRequestError: It has no route.

        Example:
            ``pulse.sql.submit(connection, resize, args, schema=routes.of("images").schema)``
        """
        # Not each route: there may be thousands, and as many jobs in a submit.
        beginnings = (topic[:end] + _REST for end in range(min(len(topic), _LONGEST), -1, -1))
        for pattern in itertools.chain((topic,), beginnings):
            if pattern in self.patterns:
                return self.queues[self.patterns[pattern]]
        raise BadRequestError(f"topic {topic!r:.100} has no route: allowed are {_listed(self.patterns)}")

    def named(self, name: str) -> Queue:
        """
        The queue called *name*.

        Raises:
            BadRequestError: There is none.
        """
        found = self.queues.get(name)
        if found is None:
            allowed = ", ".join(self.queues) or "those that the config file has in [queues], and it has none"
            raise BadRequestError(f"there is no queue {name!r:.100}: allowed are {allowed}")
        return found

    def at(self, server: str) -> Queue | None:
        """The queue that has this server, however it is written."""
        place = _place(server)
        return next((one for one in self.queues.values() if _place(one.server) == place), None)

    def check(self, topic: str, queue: str) -> None:
        """
        Check a topic that jobs of the queue called *queue* are to get: in another one nobody would serve it.

        Raises:
            BadRequestError: It has no route, or belongs to another queue.
        """
        found = self.of(topic)
        if found.name != queue:
            raise BadRequestError(
                f"topic {topic!r:.100} belongs to queue {found.name}: a topic of queue {queue} is allowed"
            )

    def refuse_several(self, needed: str) -> None:
        """Raise ConfigError if there are queues, where none is named; *needed* says what has to be given."""
        if self.queues:
            raise ConfigError(f"the config file has queues: {needed} ({', '.join(self.queues)})")

    def dashboards_beside(self, name: str | None) -> dict[str, str]:
        """The addresses of the dashboards of all queues but the one called *name*, by queue."""
        return {one.name: one.dashboard for one in self.queues.values() if one.dashboard and one.name != name}

    def shown_of(self, name: str) -> str:
        """The patterns of the queue called *name*, for a message."""
        return _listed(self.patterns_of(name))

    def patterns_of(self, name: str) -> list[str]:
        """The patterns of the queue called *name*."""
        return [pattern for pattern, queue in self.patterns.items() if queue == name]


def parse(tables: Mapping[str, object], path: Path) -> tuple[Routes, list[str]]:
    """
    The routes in the *tables* of the config file at *path*, and what is wrong with them: a line for each fault.

    Relative paths of sockets begin at the folder of the file.
    """
    problems: list[str] = []
    queues: dict[str, Queue] = {}
    for name, given in _table(tables, "queues", path, problems).items():
        queue = _queue(name, given, path, problems)
        twins = (one for one in queues.values() if queue is not None and _place(one.server) == _place(queue.server))
        if (twin := next(twins, None)) is not None:
            problems.append(
                f"queues.{name}.server in {path} is {twin.server!r}, as of queue {twin.name}: another is allowed"
            )
        elif queue is not None:
            queues[name] = queue
    known = _table(tables, "queues", path, [])
    patterns: dict[str, str] = {}
    for pattern, value in _table(tables, "routes", path, problems).items():
        label = f'routes."{pattern}" in {path}'
        if _REST in pattern[:-1] or not 1 <= len(pattern) <= _LONGEST:
            problems.append(f"{label} is no pattern: a topic, or the beginning of topics with * at its end, is allowed")
        elif not isinstance(value, str) or value not in known:
            problems.append(f"{label} is {_shown(value)}: a queue is allowed: {', '.join(known) or 'there is none'}")
        else:
            patterns[pattern] = value
    return Routes(queues, patterns), problems


def _queue(name: str, given: object, path: Path, problems: list[str]) -> Queue | None:
    """The queue, or None: then its faults are among the *problems*."""
    label = f"queues.{name}"
    if not isinstance(given, Mapping):
        problems.append(f"{label} in {path} is {_shown(given)}: a table with {', '.join(_KEYS)} is allowed")
        return None
    values = cast("Mapping[str, object]", given)
    found = (
        []
        if name and name.isprintable()
        else [f"{label!r:.{_SHOWN}} in {path}: a name of visible characters is allowed"]
    )
    found += [
        f"{label}.{key} in {path} is no setting of a queue: {', '.join(_KEYS)} are allowed"
        for key in values
        if key not in _KEYS
    ]
    server, schema, dashboard = (values.get(key) for key in _KEYS)
    if not isinstance(server, str) or _place(server) is None:
        found.append(f"{label}.server in {path} is {_shown(server)}: {_SERVERS}")
    if schema is not None and not (isinstance(schema, str) and is_allowed(schema)):
        found.append(f"{label}.schema in {path} is {_shown(schema)}: {SCHEMA_ALLOWED}")
    if dashboard is not None and not (isinstance(dashboard, str) and _DASHBOARD.fullmatch(dashboard)):
        found.append(f"{label}.dashboard in {path} is {_shown(dashboard)}: http://… or https://… is allowed, without @")
    problems += found
    if found:
        return None
    place = str(server).removeprefix("unix://")
    if "://" not in place:
        place = str(path.parent / place)
    where = None if dashboard is None else str(dashboard)
    return Queue(name, place, schema=DEFAULT if schema is None else str(schema), dashboard=where)


def _place(server: str) -> tuple[str, int] | None:
    """
    What all spellings of a server have in common: host and port, or the path of a socket. None: it is no server.

    What looks like an address or a DSN is no path, since a password may be in it.
    """
    scheme, separator, rest = server.partition("://")
    if not separator or scheme == "unix":
        path = rest if separator else server
        if "://" in path:  # which would be an address to a client
            return None
        is_plain = path.startswith(("/", ".")) or not (set("@=") & set(path) or addresses.split(path))
        return (os.path.normpath(path), 0) if path and "\0" not in path and (separator or is_plain) else None
    user, at, place = rest.rpartition("@")
    where = addresses.split(place.rstrip("/"))
    if scheme not in _SCHEMES or where is None or where[1] == 0 or ":" in user or (at and not user):
        return None
    return where[0].lower(), where[1]


def _listed(patterns: Iterable[str]) -> str:
    return cut(", ".join(patterns) or "none", _LIST)


def _table(tables: Mapping[str, object], name: str, path: Path, problems: list[str]) -> Mapping[str, object]:
    given = tables.get(name, {})
    if isinstance(given, Mapping):
        return cast("Mapping[str, object]", given)
    problems.append(f"{name} in {path} is {_shown(given)}: a table is allowed, as in [{name}]")
    return {}


def _shown(value: object) -> str:
    """The value, without what may be a password."""
    if not isinstance(value, str):
        return "not there" if value is None else f"of type {type(value).__name__}"
    scheme, separator, rest = value.rpartition("://") if value.count("://") == 1 else ("", "", value)
    text = repr(f"{scheme}{separator}…" if _MAY_HIDE.search(rest) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
