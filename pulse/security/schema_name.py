"""
The name of the database schema that holds a queue: which names are allowed, and how SQL writes them.

The name comes from a setting, and ends up in SQL that may run as the owner of a database. So SQL has it quoted
everywhere, by ``quoted``. What PostgreSQL names database-wide (channels of NOTIFY) is named by ``derived``: two queues
in one database share none of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Final

from pulse.errors import ConfigError

__all__ = ["ALLOWED", "DEFAULT", "derived", "is_allowed", "quoted", "schema_of"]

DEFAULT: Final = "pulse"
VARIABLE: Final = "PULSE_SCHEMA"
ALLOWED: Final = (
    "1 to 63 bytes of printable UTF-8 are allowed, without spaces at either end; "
    "not public or information_schema, and nothing that begins with pg_, pulse_audit or pulse_rows"
)
MAX_BYTES: Final = 63  # PostgreSQL cuts longer names, so that two of them could become one
_SHOWN: Final = 80  # characters of a wrong name in a message
_SHARED: Final = frozenset({"public", "information_schema"})  # what is in them is not pulse's to own
_RESERVED: Final = ("pg_", "pulse_audit", "pulse_rows")  # of PostgreSQL, of `pulse check`, of queues on Citus
_DIGITS: Final = 16  # 64 bits: names in one database do not meet by chance


def is_allowed(name: str) -> bool:
    """Whether a schema may have that name."""
    is_storable = name.isprintable() and name == name.strip() and 0 < len(name.encode()) <= MAX_BYTES
    return is_storable and name not in _SHARED and not name.startswith(_RESERVED)


def quoted(name: str) -> str:
    """The name as SQL has it: quoted, but for the default, which needs no quotes."""
    return name if name == DEFAULT else '"' + name.replace('"', '""') + '"'


def derived(word: str, name: str) -> str:
    """
    The name, for the schema *name*, of what is called *word* for the default schema.

    ``pulse_work`` becomes ``pulse_work_`` and the first 16 hexadecimal digits of SHA-256 of the name: it is valid and
    short enough whatever the name is.
    """
    return word if name == DEFAULT else f"{word}_{hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]}"


def schema_of(given: str | None, env: Mapping[str, str] = os.environ) -> str:
    """
    The schema that a program means: *given*, else ``PULSE_SCHEMA``, else the default.

    Raises:
        ConfigError: The name is not allowed.
    """
    label, name = ("schema", given) if given is not None else (VARIABLE, env.get(VARIABLE, "").strip() or DEFAULT)
    if is_allowed(name):
        return name
    raise ConfigError(f"{label} is {name[:_SHOWN]!r}: {ALLOWED}")
