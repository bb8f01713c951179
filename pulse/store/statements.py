"""
Reads the ``.sql`` files of ``pulse/store/sql``, which with schema.sql contain all SQL of the store. Needs no driver.

A file holds blocks. A statement is ``-- name: NAME :RESULT``, a header of comments and one SQL statement. A fragment is
``-- fragment: NAME``, a comment, and a piece of SQL that several statements share. A line ``-- :include NAME`` in a
statement, or in another fragment, is replaced by the fragment, indented like that line. All files share one set of
names. What is malformed, named twice, or never included is refused when this module is imported.

The rules for statements, held by tests:

* The header has What, Args, Guard and Returns. A statement that changes a job's status has From/to, and each move is
  in ``pulse.job.TRANSITIONS``. A write to a RUNNING job matches id, status, locked_by and attempts.
* ``now`` is the last argument where time matters. NULL means the database's clock; tests pass their own.
* Zero rows is an answer (stale, gone, taken), never a reason to repeat.
* Writes of several rows lock them in the order of their ids. Callers pass arrays sorted by id, and the planner settings
  of the hot connections keep the nested loop that walks them in that order. Other statements lock by ORDER BY id FOR
  UPDATE first.
* Ids and attempts of a fence come as the text of an array: asyncpg takes a microsecond longer for each pair that it
  writes into real arrays.
* ``status IN ('PENDING', 'RETRYING')`` is written out wherever the partial index is wanted: with a parameter the
  planner could not use it. ``status::text`` is written wherever a probe of the primary key is wanted: the planner would
  prefer the partial index of RUNNING rows, which it takes for tiny.
* The hot statements find their rows by ``id BETWEEN x AND x``. It is the same probe as ``id = x``, but an equality also
  offers a walk through the whole primary key in id order, for a merge, even where merge joins are off. The planner
  chooses that when the table is small, or was when it was analysed, and keeps the plan: 210 ms instead of 4 for 500
  heartbeats among 5,000 jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

Result: TypeAlias = Literal["many", "one", "exec"]

_BLOCK: Final = re.compile(
    r"^-- (?:name: (?P<name>[a-z_0-9]+) :(?P<result>many|one|exec)|fragment: (?P<fragment>[a-z_0-9]+))$", re.MULTILINE
)
_INCLUDE: Final = re.compile(r"^(?P<indent> *)-- :include (?P<name>[a-z_0-9]+)$", re.MULTILINE)
_REQUIRED: Final = ("What:", "Args:", "Guard:", "Returns:")
_MOVES: Final = re.compile(r"From/to:\s*(?P<sources>[A-Za-z_, ]+?)\s*->\s*(?P<targets>[A-Z_, ]+?)\s*(?:$|\n)")


@dataclass(frozen=True, slots=True)
class Statement:
    """
    One named statement.

    Attributes:
        name: As in its file.
        result: What it returns: ``many`` rows, ``one`` row or none, or nothing (``exec``).
        header: Its comment, for people and for tests that compare it with the transitions.
        sql: The text for the server, without comments.
    """

    name: str
    result: Result
    header: str
    sql: str

    @property
    def moves(self) -> frozenset[tuple[str, str]]:
        """The (from, to) statuses that the header names; ``none``: there is no row before."""
        return frozenset(
            (source.strip(), target.strip())
            for found in _MOVES.finditer(self.header)
            for source in found["sources"].split(",")
            for target in found["targets"].split(",")
        )


def parse(*contents: str) -> dict[str, Statement]:
    """
    The statements of some files by name, with their fragments put in.

    Args:
        contents: The text of each file.

    Raises:
        ValueError: A block has no name, lacks a word of its header, or has a name that is taken; an included fragment
            does not exist, includes itself, or is never included.
    """
    blocks: dict[str, tuple[re.Match[str], str]] = {}
    for mark, block in (found for text in contents for found in _blocks(text)):
        name = mark["name"] or mark["fragment"]
        if name in blocks:
            message = f"statement {name} is there twice"
            raise ValueError(message)
        blocks[name] = mark, block
    fragments = {name: _fragment(name, block) for name, (mark, block) in blocks.items() if mark["fragment"]}
    included = {found["name"] for _, block in blocks.values() for found in _INCLUDE.finditer(block)}
    if unused := sorted(fragments.keys() - included):
        message = f"no statement includes the fragment {unused[0]}"
        raise ValueError(message)
    return {
        name: _statement(name, cast("Result", mark["result"]), _expanded(block, fragments))
        for name, (mark, block) in blocks.items()
        if mark["name"]
    }


def _blocks(text: str) -> list[tuple[re.Match[str], str]]:
    """Each block of *text*: its first line, and what follows it."""
    marks = list(_BLOCK.finditer(text))
    before = text[: marks[0].start()] if marks else text
    if any(line and not line.startswith("--") for line in map(str.strip, before.splitlines())):
        message = "a statement without a name"
        raise ValueError(message)
    ends = [*(following.start() for following in marks[1:]), len(text)]
    return [(mark, text[mark.end() : end]) for mark, end in zip(marks, ends, strict=False)]


def _fragment(name: str, block: str) -> str:
    """The SQL of a fragment, with the lines that include others."""
    lines = block.strip().splitlines()
    if not any(line.startswith("-- What:") for line in lines):
        message = f"fragment {name}: the header lacks What:"
        raise ValueError(message)
    return "\n".join(line for line in lines if not line.lstrip().startswith("--") or _INCLUDE.match(line)).strip("\n")


def _expanded(block: str, fragments: Mapping[str, str], within: tuple[str, ...] = ()) -> str:
    """*block* with each `:include` line replaced by its fragment."""

    def put_in(found: re.Match[str]) -> str:
        name, indent = found["name"], found["indent"]
        if name not in fragments:
            message = f"there is no fragment {name} to include"
            raise ValueError(message)
        if name in within:
            message = f"fragment {name} includes itself"
            raise ValueError(message)
        lines = _expanded(fragments[name], fragments, (*within, name)).splitlines()
        return "\n".join(indent + line for line in lines)

    return _INCLUDE.sub(put_in, block)


def _statement(name: str, result: Result, block: str) -> Statement:
    lines = block.strip().splitlines()
    header = "\n".join(line[2:].strip() for line in lines if line.startswith("--"))
    sql = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip()
    missing = [word for word in _REQUIRED if word not in header]
    if missing:
        message = f"statement {name}: the header lacks {', '.join(missing)}"
        raise ValueError(message)
    if sql.count(";") != 1 or not sql.endswith(";"):
        message = f"statement {name}: exactly one statement that ends with a semicolon is allowed"
        raise ValueError(message)
    return Statement(name, result, header, sql=sql.rstrip(";").rstrip())


def texts(folder: str, *names: str) -> list[str]:
    """The contents of the files *names* in a folder of the store; without names: of all its ``.sql`` files."""
    home = Path(__file__).parent / folder
    found = [home / name for name in names] or home.glob("*.sql")
    return [one.read_text("utf-8") for one in sorted(found)]


STATEMENTS: Final = parse(*texts("sql"))
_NAMES: Final = {one.sql: one.name for one in STATEMENTS.values()}
_SHOWN: Final = 60
_PULSE: Final = Path(__file__).parents[1]


def schema_sql() -> str:
    """The text of schema.sql: beside the packages in a checkout, inside ``pulse`` in an installation."""
    packaged = _PULSE / "schema.sql"
    if packaged.is_file():
        return packaged.read_text("utf-8")
    return (_PULSE.parent / "schema.sql").read_text("utf-8")


def name_of(sql: str) -> str:
    """The name of a statement, by its text; of any other SQL: how it begins."""
    return _NAMES.get(sql) or " ".join(sql.split())[:_SHOWN]
