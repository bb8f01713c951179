"""
Reads the steps that upgrade the schema to a version, from ``versions/N.sql``.

A step is ``-- step: NAME``, a header of comments and SQL. The header has

* ``What:`` what it does, a sentence;
* ``Kind:`` how it runs, see ``StepKind``;
* ``Table:`` the table that it locks or fills, ``none`` if there is none;
* ``Lock:`` the strongest lock that it takes on that table, as PostgreSQL's manual calls it, or ``none``;
* ``Key:`` in batches only: the column in whose order the table is filled. It is unique, and has an index.

What a step does has to be harmless when it is done again: a crash may come between it and the note that it is done.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Step", "StepKind", "parse_steps", "steps_of"]

WEAK_LOCKS: Final = ("none", "ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE")
STRONG_LOCKS: Final = ("SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE")
_STEP: Final = re.compile(r"^-- step: ([a-z][a-z0-9-]*)$", re.MULTILINE)
_FIELD: Final = re.compile(r"^-- (What|Kind|Table|Lock|Key): +(.+)$", re.MULTILINE)
_INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (\w+) ON ")
_FIELDS: Final = ("What", "Kind", "Table", "Lock")
_PARAMETERS: Final = ("$1", "$2", "$3")  # of batches


class StepKind(StrEnum):
    """
    How a step runs.

    BRIEF: in a transaction that lasts milliseconds, whatever it locks; tried again while it would have to wait.
    LONG: in a transaction of any length, which locks nobody out (``VALIDATE CONSTRAINT``).
    CONCURRENT: outside of a transaction (``CREATE INDEX CONCURRENTLY``).
    BATCHES: in many short transactions, each of which fills some rows and notes how far it came. It ends with the row
        that was the last when it was begun, or gone on with: rows that come later have to be right already, by a
        default or a trigger.
    """

    BRIEF = "brief"
    LONG = "long"
    CONCURRENT = "concurrent"
    BATCHES = "batches"


class Step(msgspec.Struct, frozen=True):
    """
    One step.

    Attributes:
        version: The version of the schema that it belongs to.
        name: Its name; each is used once in a version.
        what: What it does.
        kind: How it runs.
        table: Which table it locks or fills; None: none that was there before.
        lock: The strongest lock on that table.
        sql: What it runs. In batches: ``$1`` is the key that was reached, as text (NULL: none), ``$2`` the number of
            rows, ``$3`` the last key, as text; it returns the key reached now, as text, and how many rows it looked at.
        key: The column in whose order it fills the table; None: it has no batches.
    """

    version: int
    name: str
    what: str
    kind: StepKind
    table: str | None
    lock: str
    sql: str
    key: str | None = None

    @property
    def locks_out(self) -> bool:
        """Whether nobody can write to the table meanwhile, or while the step waits for it."""
        return self.lock in STRONG_LOCKS

    @property
    def index(self) -> str | None:
        """The index that it makes concurrently."""
        found = _INDEX.search(self.sql)
        return found[1] if found and self.kind is StepKind.CONCURRENT else None


def steps_of(version: int, folder: Path) -> list[Step]:
    """The steps of *version*, in order, from a file in *folder*."""
    return parse_steps(version, (folder / f"{version}.sql").read_text("utf-8"))


def parse_steps(version: int, text: str) -> list[Step]:
    """
    The steps in *text*.

    Raises:
        ValueError: A step is malformed, or its name is used twice.
    """
    before, *parts = _STEP.split(text)
    if any(line and not line.startswith("--") for line in map(str.strip, before.splitlines())):
        message = f"version {version}: SQL before the first step"
        raise ValueError(message)
    steps = [_step(version, name, block) for name, block in zip(parts[::2], parts[1::2], strict=True)]
    names = [step.name for step in steps]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f"version {version}: two steps are called {twice[0]}"
        raise ValueError(message)
    return steps


def _step(version: int, name: str, block: str) -> Step:
    fields = dict(_FIELD.findall(block))
    sql = "\n".join(line for line in block.splitlines() if not line.lstrip().startswith("--")).strip()
    if missing := [field for field in _FIELDS if field not in fields]:
        message = f"step {name}: the header lacks {', '.join(missing)}"
        raise ValueError(message)
    if fields["Kind"] not in {*StepKind}:
        message = f"step {name}: its kind is {fields['Kind']}; {', '.join(StepKind)} are allowed"
        raise ValueError(message)
    kind = StepKind(fields["Kind"])
    allowed = (*WEAK_LOCKS, *STRONG_LOCKS) if kind is StepKind.BRIEF else WEAK_LOCKS
    if fields["Lock"] not in allowed:
        message = f"step {name}: it locks {fields['Lock']}; if it is {kind}, {', '.join(allowed)} are allowed"
        raise ValueError(message)
    table, key = None if fields["Table"] == "none" else fields["Table"], fields.get("Key")
    if kind is not StepKind.BATCHES and key is not None:
        message = f"step {name}: it has a Key, which only batches have"
        raise ValueError(message)
    if kind is StepKind.BATCHES and (table is None or key is None):
        message = (
            f"step {name}: the header of batches needs Table and Key: what they fill, in the order of which column"
        )
        raise ValueError(message)
    if kind is StepKind.BATCHES and (left := [parameter for parameter in _PARAMETERS if parameter not in sql]):
        message = f"step {name}: the SQL of batches needs {', '.join(left)}"
        raise ValueError(message)
    return Step(version, name, fields["What"], kind=kind, table=table, lock=fields["Lock"], sql=sql, key=key)
