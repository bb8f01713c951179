"""
Divides schema.sql among the nodes of Citus; pure.

Citus plans no UPDATE that calls ``clock_timestamp()``, nor much else that pulse needs. So its planner sees none of it.
Citus gets the tables, in a schema of their own (``pulse_rows``), places that on a node and moves it. On that node the
schema of the queue has views of the tables, and all functions. PostgreSQL itself plans statements on these views.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_PART: Final = re.compile(
    r"""--[^\n]* | "(?:[^"]|"")*" | '(?:[^']|'')*' | \$(?P<tag>[a-z_]*)\$ .*? \$(?P=tag)\$
      | \bBEGIN\ ATOMIC\b .*? \nEND(?=;) | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENTS: Final = re.compile(r"^(?:\s|--[^\n]*\n)*")
_TABLE: Final = re.compile(r"CREATE TABLE pulse\.(?P<table>\w+)")
_OF_ROWS: Final = ("CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX", "INSERT INTO")
_TRIGGERS: Final = ("CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER")
# Types, and the function of a generated column: tables of all nodes refer to them.
_OF_ALL: Final = (
    "CREATE SCHEMA",
    "COMMENT ON SCHEMA",
    "CREATE TYPE",
    "CREATE DOMAIN",
    "CREATE FUNCTION pulse.jittered(",
)
_NOT_A_TABLE: Final = r"(?!job_|jittered\()"
_KNOWN_BY_OID: Final = "witnesses"  # a copy of the table is another place
# Its caller commits by what it reads: it has to notice a move, too. A write of no row does so, by the trigger.
_FENCE: Final = "CREATE FUNCTION pulse.check_attempt("
_BEGINS: Final = "\nBEGIN\n"
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


def for_home(sql: str, shards: Mapping[str, int], notices_move: str) -> Iterator[str]:
    """
    What the node has that has the rows: views, functions, and the triggers of the tables.

    Args:
        sql: schema.sql.
        shards: Of each table: the number at the end of the name that it has on that node.
        notices_move: A statement that fails where the rows have been.
    """
    for command in commands(sql):
        table = _TABLE.match(command)
        if table is not None:
            yield from _view(command, table["table"], shards[table["table"]])
        elif command.startswith(_TRIGGERS):
            yield re.sub(r"\bON pulse\.(\w+)", lambda on: f"ON pulse_rows.{on[1]}_{shards[on[1]]}", command)
        elif not command.startswith((*_OF_ROWS, *_OF_ALL)):
            yield _again(command, notices_move)


def _view(command: str, table: str, shard: int) -> Iterator[str]:
    """The view of a table, with what a view lacks: defaults for columns that count, and its oid."""
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


def _again(command: str, notices_move: str) -> str:
    """The same, where a queue has been on this node before: its views went with the tables, functions stayed."""
    if command.startswith(_FENCE):
        head, body = command.split(_BEGINS)
        command = f"{head}{_BEGINS}    {notices_move};\n{body}"
    return command.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace(
        "CREATE SEQUENCE", "CREATE SEQUENCE IF NOT EXISTS"
    )
