"""
Reads ``queries.sql``: the only place where SQL is written.

A block is ``-- name: NAME :RESULT``, a header of comments and one statement. A block without a name, without one of the
header's words, or twice under one name is refused when the module is loaded, not when the statement is first used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Literal, TypeAlias, cast

Result: TypeAlias = Literal["many", "one", "exec"]

_NAME: Final = re.compile(r"^-- name: (?P<name>[a-z_0-9]+) :(?P<result>many|one|exec)$", re.MULTILINE)
_REQUIRED: Final = ("What:", "Args:", "Guard:", "Returns:")
_MOVES: Final = re.compile(r"From/to:\s*(?P<sources>[A-Za-z_, ]+?)\s*->\s*(?P<targets>[A-Z_, ]+?)\s*(?:$|\n)")


@dataclass(frozen=True, slots=True)
class Statement:
    """
    One named statement.

    Attributes:
        name: As in ``queries.sql``.
        result: What it returns: ``many`` rows, ``one`` row or none, or nothing (``exec``).
        header: Its comment, for people and for the tests that hold it against the transitions.
        sql: The text for the server, without comments.
    """

    name: str
    result: Result
    header: str
    sql: str

    @property
    def moves(self) -> frozenset[tuple[str, str]]:
        """The (from, to) statuses that the header claims; ``none`` stands for a row that is not there yet."""
        return frozenset(
            (source.strip(), target.strip())
            for found in _MOVES.finditer(self.header)
            for source in found["sources"].split(",")
            for target in found["targets"].split(",")
        )


def parse(text: str) -> dict[str, Statement]:
    """
    The statements of *text* by name.

    Raises:
        ValueError: A statement has no name, lacks a word of the header, or has a name that is taken.
    """
    marks = list(_NAME.finditer(text))
    before = text[: marks[0].start()] if marks else text
    if any(line and not line.startswith("--") for line in map(str.strip, before.splitlines())):
        message = "a statement without a name"
        raise ValueError(message)
    statements: dict[str, Statement] = {}
    for mark, end in zip(marks, [*(following.start() for following in marks[1:]), len(text)], strict=False):
        statement = _statement(mark["name"], cast("Result", mark["result"]), text[mark.end() : end])
        if statement.name in statements:
            message = f"statement {statement.name} is there twice"
            raise ValueError(message)
        statements[statement.name] = statement
    return statements


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
    return Statement(name, result, header, sql.rstrip(";"))


STATEMENTS: Final = parse((files("pulse.store") / "sql" / "queries.sql").read_text("utf-8"))
_NAMES: Final = {one.sql: one.name for one in STATEMENTS.values()}
_SHOWN: Final = 60


def name_of(sql: str) -> str:
    """The name of a statement, by its text; of one that is not of ``queries.sql``: how it begins."""
    return _NAMES.get(sql) or " ".join(sql.split())[:_SHOWN]
