"""
Renders SQL for a schema of another name than ``pulse``.

All SQL of pulse is written for the schema ``pulse``; a ``Session`` renders it when it sends it. For the default schema
nothing is rendered, so the server sees the files as they are. The rules, outside of comments and quoted names:

* A bare ``pulse`` is the schema: it becomes the quoted name. Dollar quotes become others if the name contains a ``$``.
* ``'pulse'`` is the name as the catalogue has it. Where PostgreSQL parses the text, ``to_regnamespace('pulse')`` and
  ``'pulse'::regnamespace``, it is quoted.
* ``'pulse.jobs'`` is the name of something in the schema, parsed too; but ``'pulse.notify'`` and others are settings of
  the session, which all schemas share.
* Channels of NOTIFY, the schema of the audit, and the schema of the rows on Citus (``'pulse_work'``,
  ``pulse_audit``, ``pulse_rows``) are derived names.
* A text that begins with CREATE is SQL again, for EXECUTE.
* Every other text stays as it is.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from pulse.security.schema_name import DEFAULT, derived, quoted

AUDIT: Final = "pulse_audit"
ROWS: Final = "pulse_rows"
CHANNELS: Final = frozenset({"pulse_work", "pulse_gate", "pulse_schedules"})
SESSION_SETTINGS: Final = frozenset({"notify", "operator", "probe"})
_STATEMENTS: Final = 1024  # more than there are
_TOKEN: Final = re.compile(
    r"""--[^\n]*|"(?:[^"]|"")*"
      | \$(?P<tag>[a-z_]*)\$
      | (?:(?<=to_regnamespace\()'pulse'|'pulse'(?=::regnamespace))(?P<parsed>)
      | '(?P<text>(?:[^']|'')*)'
      | (?<![\w.])(?P<name>pulse|pulse_audit|pulse_rows)(?!\w)""",
    re.VERBOSE,
)
_QUALIFIED: Final = re.compile(r"(pulse|pulse_audit|pulse_rows)\.(\w+)")


def rendered(sql: str, schema: str) -> str:
    """
    *sql* for the schema *schema*.

    Args:
        sql: A statement, or several, for the schema ``pulse``.
        schema: An allowed name.
    """
    return sql if schema == DEFAULT else _rendered(sql, schema)


@functools.lru_cache(_STATEMENTS)
def _rendered(sql: str, schema: str) -> str:
    def token(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "tag":
                return _dollar_quote(found["tag"], schema)
            case "parsed":
                return _literal(quoted(schema))
            case "text":
                text = found["text"].replace("''", "'")
                return found[0] if (new := _text(text, schema)) == text else _literal(new)
            case "name":
                return _home(found["name"], schema)
            case _:
                return found[0]

    return _TOKEN.sub(token, sql)


def _home(name: str, schema: str) -> str:
    """The schema, or the one of its audit or its rows, as SQL has it."""
    return quoted(schema) if name == DEFAULT else derived(name, schema)


def _text(text: str, schema: str) -> str:
    """What a text becomes; both without their quotes."""
    if text == DEFAULT:
        return schema
    if text in {AUDIT, ROWS} or text in CHANNELS:
        return derived(text, schema)
    if text.startswith("CREATE "):
        return _rendered(text, schema)
    qualified = _QUALIFIED.fullmatch(text)
    if qualified is None or qualified[2] in SESSION_SETTINGS:
        return text
    return f"{_home(qualified[1], schema)}.{qualified[2]}"


def _literal(text: str) -> str:
    """*text* as SQL has it, whatever standard_conforming_strings is."""
    plain = "'" + text.replace("'", "''") + "'"
    return " E" + plain.replace("\\", "\\\\") if "\\" in text else plain


def _dollar_quote(tag: str, schema: str) -> str:
    """A tag that the name does not contain."""
    if "$" in schema:
        tag = tag or DEFAULT
        while f"${tag}$" in schema:
            tag += "_"
    return f"${tag}$"
