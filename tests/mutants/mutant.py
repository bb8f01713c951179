"""A mutant: one guard taken out of one statement, and the test that must fail then."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from pulse.store.admin import schema
from pulse.store.statements import STATEMENTS, Statement

SCHEMA: Final = "schema.sql"
DOCTOR: Final = "doctor."


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One change of a statement, of the doctor's or of schema.sql.

    Attributes:
        where: Name of the statement, SCHEMA, or DOCTOR with the name of one of its own.
        edits: Pairs (text, what stands there instead); each text is there exactly once.
        killer: The test that must fail, as ``file::function`` under tests/store.
        old: Whether it shows only on a PostgreSQL before 18.
    """

    where: str
    edits: tuple[tuple[str, str], ...]
    killer: str
    old: bool = False

    def __str__(self) -> str:
        """For people."""
        text, instead = (" ".join(part.split()) for part in self.edits[0])
        more = f" (and {len(self.edits) - 1} more)" if self.edits[1:] else ""
        return f"{self.where}: {text!r} -> {instead!r}{more}"

    def mutated(self, text: str) -> str:
        """
        *text* with the change.

        Raises:
            ValueError: A text to be replaced is not there, or not there alone.
        """
        for old, new in self.edits:
            if text.count(old) != 1:
                message = f"{self}: the text is there {text.count(old)} times"
                raise ValueError(message)
            text = text.replace(old, new)
        return text

    def original(self) -> str:
        """The text that it changes."""
        if self.where == SCHEMA:
            return schema.schema_sql()
        statements, name = _home(self.where)
        return statements[name].sql

    def apply(self) -> None:
        """Put it in force in this process; before the store is imported, which keeps texts of statements."""
        changed = self.mutated(self.original())
        if self.where == SCHEMA:
            schema.schema_sql = lambda: changed
        else:
            statements, name = _home(self.where)
            statements[name] = dataclasses.replace(statements[name], sql=changed)


def _home(where: str) -> tuple[dict[str, Statement], str]:
    """The statements among which it is, and its name there."""
    if not where.startswith(DOCTOR):
        return STATEMENTS, where
    from pulse.store.admin import doctor

    return doctor.QUESTIONS, where.removeprefix(DOCTOR)


def cut(where: str, text: str, killer: str) -> Mutant:
    """*text* left out."""
    return Mutant(where, ((text, ""),), killer)


def swap(where: str, text: str, instead: str, killer: str) -> Mutant:
    """*text* replaced."""
    return Mutant(where, ((text, instead),), killer)
