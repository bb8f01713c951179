"""
Divides schema.sql among the nodes of Citus; pure.

Citus plans no UPDATE that calls ``clock_timestamp()``, nor much else that pulse needs. So its planner sees none of it.
Citus gets the tables, in a schema of their own (``pulse_rows``), places that on a node and moves it. On that node the
schema of the queue has views of the tables, and all functions. PostgreSQL itself plans statements on these views.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Final

_PART: Final = re.compile(
    r"""--[^\n]* | "(?:[^"]|"")*" | '(?:[^']|'')*' | \$(?P<tag>[a-z_]*)\$ .*? \$(?P=tag)\$
      | \bBEGIN\ ATOMIC\b .*? \nEND(?=;) | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENTS: Final = re.compile(r"^(?:\s|--[^\n]*\n)*")
_TABLE: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?pulse\.(?P<table>\w+)")
_OF_ROWS: Final = ("CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX", "INSERT INTO")
_TRIGGER: Final = re.compile(r"(?:CREATE (?:OR REPLACE )?(?:CONSTRAINT )?|DROP )TRIGGER\b")
# Types, and the function of a generated column: tables of all nodes refer to them.
_OF_ALL: Final = (
    "CREATE SCHEMA",
    "COMMENT ON SCHEMA",
    "CREATE TYPE",
    "CREATE DOMAIN",
    "CREATE FUNCTION pulse.jittered(",
)
# Of the steps of an upgrade: what changes tables, and what their columns are made of.
_CHANGES_ROWS: Final = re.compile(r"(?:CREATE|ALTER|DROP) TABLE\b|(?:CREATE(?: UNIQUE)?|DROP) INDEX\b")
_CHANGES_TYPES: Final = re.compile(r"(?:CREATE|ALTER|DROP) (?:TYPE|DOMAIN)\b")
_TYPE: Final = re.compile(r"CREATE (?:TYPE|DOMAIN) pulse\.(\w+)")
_LIST: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[(),]""")
_ALTER: Final = re.compile(r"ALTER TABLE (?:IF EXISTS )?\S+ ")
_ALTERED: Final = re.compile(r"ALTER TABLE (?:IF EXISTS )?pulse\.(\w+)")
_DROPPED: Final = re.compile(r"\bDROP COLUMN (?:IF EXISTS )?(\w+)")
_NOT_A_TABLE: Final = r"(?!job_|jittered\()"
_KNOWN_BY_OID: Final = "witnesses"  # a copy of the table is another place
# Its caller commits by what it reads: it has to notice a move, too. A write of no row does so, by the trigger.
FENCE: Final = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION pulse\.check_attempt\(")
BEGINS: Final = "\nBEGIN\n"
_VERSION: Final = re.compile(r"INSERT INTO pulse\.schema_version \(version, release\) VALUES \((\d+), '([^']+)'\)")
_IDENTITY: Final = re.compile(r"^ +(?P<column>\w+) +bigint GENERATED (?:ALWAYS|BY DEFAULT) AS IDENTITY", re.MULTILINE)


def commands(sql: str) -> Iterator[str]:
    """Each command of *sql*, without the comments before it: Citus takes several only one by one."""
    begin = 0
    for found in _PART.finditer(sql):
        if found["end"]:
            yield _COMMENTS.sub("", sql[begin : found.start()], count=1)
            begin = found.end()


def for_all_nodes(sql: str) -> Iterator[str]:
    """What each node has, in the schema of the queue."""
    return (command for command in commands(sql) if command.startswith(_OF_ALL))


def rows(sql: str) -> Iterator[str]:
    """The tables and their first rows, which Citus keeps together."""
    yield "CREATE SCHEMA pulse_rows"
    for command in commands(sql):
        if command.startswith(_OF_ROWS):
            yield re.sub(rf"\bpulse\.{_NOT_A_TABLE}", "pulse_rows.", command)


def version_of(sql: str) -> tuple[int, str]:
    """The version of the schema that *sql* makes, and the release that brought it."""
    ((version, release),) = _VERSION.findall(sql)
    return int(version), release


def for_coordinator(command: str, tables: Container[str]) -> list[str]:
    """
    A command of an upgrade, as the coordinator takes it for all nodes; it takes some changes of a table one by one.

    Args:
        command: One command of a step.
        tables: The names of the tables that are there.

    Returns:
        The parts; none: the command is for the node that has the rows.
    """
    if _CHANGES_TYPES.match(command):
        return [command]
    if not _CHANGES_ROWS.match(command):
        return []

    def moved(name: re.Match[str]) -> str:
        is_there = name[1] in tables or name[1] == table_made_by(command) or command.startswith("DROP INDEX")
        return f"pulse_rows.{name[1]}" if is_there else name[0]

    command = re.sub(r"\bpulse\.(\w+)", moved, command)
    altered = _ALTER.match(command)
    return [command] if altered is None else [f"{altered[0]}{change}" for change in changes_of(command)]


def changes_of(command: str) -> Iterator[str]:
    """The changes that an ALTER TABLE makes."""
    altered = _ALTER.match(command)
    changes = "" if altered is None else command[altered.end() :]
    begin = depth = 0
    for found in _LIST.finditer(changes):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0] == "," and not depth:
            yield changes[begin : found.start()].strip()
            begin = found.end()
    yield changes[begin:].strip()


def table_made_by(command: str) -> str | None:
    """The table that *command* makes."""
    found = _TABLE.match(command)
    return None if found is None else found["table"]


def type_made_by(command: str) -> str | None:
    """The type or domain that *command* makes."""
    found = _TYPE.match(command)
    return None if found is None else found[1]


def columns_dropped_by(command: str) -> list[str]:
    """The columns that *command* drops, each after its table."""
    table = _ALTERED.match(command)
    return [] if table is None else [f"{table[1]}.{column}" for column in _DROPPED.findall(command)]


def for_rows(command: str, shards: Mapping[str, int], notices_move: str) -> str:
    """Any other command of an upgrade, for the node that has the rows; arguments as for ``for_home``."""

    def moved(on: re.Match[str]) -> str:
        is_there = on[1] in shards  # else a step before has dropped it
        return f"ON pulse_rows.{on[1]}_{shards[on[1]]}" if is_there else on[0]

    if _TRIGGER.match(command):
        return re.sub(r"\bON pulse\.(\w+)", moved, command)
    if FENCE.match(command):
        head, body = command.split(BEGINS)
        return f"{head}{BEGINS}    {notices_move};\n{body}"
    return command


def for_home(sql: str, shards: Mapping[str, int], notices_move: str) -> Iterator[str]:
    """
    What the node has that has the rows: views, functions, and the triggers of the tables.

    Args:
        sql: schema.sql.
        shards: Of each table: the number at the end of the name that it has on that node.
        notices_move: A statement that fails where the rows have been.
    """
    for command in commands(sql):
        if table_made_by(command) is not None:
            yield from view_of(command, shards)
        elif not command.startswith((*_OF_ROWS, *_OF_ALL)):
            yield _again(for_rows(command, shards, notices_move))


def view_of(command: str, shards: Mapping[str, int]) -> Iterator[str]:
    """The view of the table that *command* makes, with what a view lacks: defaults for columns that count, its oid."""
    table = table_made_by(command)
    shard = shards[str(table)]
    name = f"pulse_rows.{table}_{shard}"
    oid = f", to_regclass('pulse.{table}')::oid AS tableoid" if table == _KNOWN_BY_OID else ""
    yield f"CREATE VIEW pulse.{table} AS SELECT *{oid} FROM {name}"  # noqa: S608 - names of schema.sql
    for identity in _IDENTITY.finditer(command):
        column, counter = identity["column"], f"pulse.{table}_{identity['column']}"
        yield f"CREATE SEQUENCE IF NOT EXISTS {counter}"
        yield f"SELECT setval('{counter}', (SELECT coalesce(max({column}), 0) + 1 FROM {name}), false)"  # noqa: S608
        yield f"ALTER VIEW pulse.{table} ALTER COLUMN {column} SET DEFAULT nextval('{counter}')"
    yield (
        f"CREATE TRIGGER a_stay_with_rows BEFORE INSERT OR UPDATE OR DELETE ON {name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION pulse.stay_with_rows('{shard}')"
    )


def _again(command: str) -> str:
    """The same, where a queue has been on this node before: its views went with the tables, functions stayed."""
    return command.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace(
        "CREATE SEQUENCE", "CREATE SEQUENCE IF NOT EXISTS"
    )
