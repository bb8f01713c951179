"""
Which commands the steps of an upgrade may have, so that a queue on Citus can take them; pure.

``citus_schema`` reads commands by patterns, and would misread some: a quoted name, a table that a text names. So a step
has the forms below, and no others. They can be taken twice: a move begins an upgrade anew. A release that needs another
form adds it here, with a test on Citus.
"""

from __future__ import annotations

import re
from typing import Final

from pulse.errors import SchemaError
from pulse.store.admin.upgrade.steps import Step, StepKind
from pulse.store.connections.citus_schema import BEGINS, FENCE, changes_of, commands

__all__ = ["refuse_other_forms"]

_NAME: Final = r"pulse\.\w+"
_FUNCTION: Final = r"pulse\.(?!jittered\b)\w+ ?\("  # that one is on all nodes: tables of all have columns made by it
# Citus refuses rules in ADD COLUMN, and an identity; the type of a column is a view's type, too.
_CHANGES: Final = (
    r"ADD COLUMN IF NOT EXISTS \w+ (?!.*\b(?:CHECK|CONSTRAINT|PRIMARY|REFERENCES|UNIQUE)\b).+",
    r"DROP COLUMN IF EXISTS \w+",
    r"ALTER COLUMN \w+ (?:SET DEFAULT .+|DROP DEFAULT|(?:SET|DROP) NOT NULL)",
    r"ADD CONSTRAINT \w+ .+",
    r"(?:DROP CONSTRAINT IF EXISTS|VALIDATE CONSTRAINT) \w+",
    r"(?:SET|RESET) \(.+\)",
)
_OF_TABLES: Final = (
    rf"ALTER TABLE (?:IF EXISTS )?{_NAME} .+",
    rf"CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?IF NOT EXISTS \w+ ON {_NAME} .+",
    rf"DROP INDEX (?:CONCURRENTLY )?IF EXISTS {_NAME}",
    rf"CREATE TABLE IF NOT EXISTS {_NAME} \(.+",
    rf"DROP (?:TABLE|TYPE|DOMAIN) IF EXISTS {_NAME}",
    rf"CREATE (?:DOMAIN {_NAME} AS|TYPE {_NAME} AS ENUM) .+",
    rf"ALTER TYPE {_NAME} ADD VALUE IF NOT EXISTS ''",
)
_OF_TRIGGERS: Final = (
    rf"CREATE (?:OR REPLACE |CONSTRAINT )?TRIGGER \w+ (?:BEFORE|AFTER) [\w\s,]+ ON {_NAME}\s.*FUNCTION {_NAME}\(.*",
    rf"DROP TRIGGER IF EXISTS \w+ ON {_NAME}",
)
_OF_FUNCTIONS: Final = (
    rf"CREATE (?:OR REPLACE )?FUNCTION {_FUNCTION}.+",
    rf"DROP FUNCTION IF EXISTS {_FUNCTION}.*\)",
    rf"(?:GRANT|REVOKE) (?:ALL|EXECUTE) ON FUNCTION {_FUNCTION}.+",
)
_OF_ROWS: Final = (rf"(?:INSERT INTO|UPDATE|DELETE FROM) {_NAME}\s.+", r"(?:SELECT|WITH)\s.+")
_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_UNREADABLE: Final = re.compile(r'["$\\]|--|/\*')
_NEVER: Final = re.compile(r"\b(?:IDENTITY|(?:small|big)?serial|INHERITS|LIKE pulse|PARTITION)\b", re.IGNORECASE)
_OTHER_FUNCTION: Final = re.compile(r"\bpulse\.(?!jittered\()\w+\(")
_NOT_OF_A_VIEW: Final = re.compile(r"\\|/\*|\b(?:ctid|ONLY|TABLESAMPLE)\b", re.IGNORECASE)
_CONCURRENT: Final = re.compile(r"(?:CREATE (?:UNIQUE )?|DROP )INDEX CONCURRENTLY ")
_OTHER_TAG: Final = re.compile(r"\$(?![a-z_]+\$)[A-Za-z_]\w*\$")


def refuse_other_forms(step: Step) -> None:
    """
    Look at the commands of *step*.

    Raises:
        SchemaError: One of them is of no form that a queue on Citus can take.
    """
    for command in commands(f"{step.sql};"):
        if command and not _is_taken(command, step.kind):
            raise SchemaError(
                f"step {step.name} of version {step.version}: a queue on Citus cannot take this form of a command, "
                f"or not in a step that is {step.kind}: {' '.join(command.split())}"
            )


def _is_taken(command: str, kind: StepKind) -> bool:
    plain = _TEXT.sub("''", command)
    if (_CONCURRENT.match(plain) is not None) is not (kind is StepKind.CONCURRENT):
        return False
    if _is(plain, _OF_ROWS):
        return not _NOT_OF_A_VIEW.search(plain)
    if kind is StepKind.BATCHES:
        return False
    if _is(plain, _OF_FUNCTIONS):
        return _is_whole(command)
    if _UNREADABLE.search(plain) or any("pulse" in text or "\\" in text for text in _TEXT.findall(command)):
        return False  # names become others in these commands
    return _is_of_a_trigger(plain) or _is_of_tables(plain)


def _is(plain: str, forms: tuple[str, ...]) -> bool:
    return any(re.fullmatch(form, plain, re.DOTALL) for form in forms)


def _is_whole(command: str) -> bool:
    """The body ends where ``commands`` has seen its end; a fence has a place for the notice of a move."""
    return (
        not _OTHER_TAG.search(command)
        and ("BEGIN ATOMIC" not in command or command.endswith("\nEND"))
        and (not FENCE.match(command) or command.count(BEGINS) == 1)
    )


def _is_of_a_trigger(plain: str) -> bool:
    """It names its table and its function, and nothing else of the schema."""
    return _is(plain, _OF_TRIGGERS) and len(re.findall(r"\bpulse\.", plain)) <= 2  # noqa: PLR2004 - those two


def _is_of_tables(plain: str) -> bool:
    """The coordinator has all that it needs: tables and types."""
    if not _is(plain, _OF_TABLES) or _NEVER.search(plain) or _OTHER_FUNCTION.search(plain):
        return False
    return not plain.startswith("ALTER TABLE") or all(_is(change, _CHANGES) for change in changes_of(plain))
