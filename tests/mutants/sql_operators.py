"""
The mechanical mutants of a statement and of schema.sql, made from their words.

A condition holds always, or never. A bound is passed by one. ``FOR UPDATE``, ``SKIP LOCKED``, ``DISTINCT``, ``DESC``,
the outer side of a join, ``ON CONFLICT DO NOTHING``, a limit, an order, an item of SET, an argument of coalesce,
greatest and least, a value of IN, the right side of a sum, difference, product or quotient, and a call or an assignment
of PL/pgSQL are left out.

A condition of the schema, or of a statement that writes, is a guard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.mutants.source import SCHEMA, Mutant, Span, numbered, text_of

_TOKEN: Final = re.compile(
    r"--[^\n]*|'(?:[^']|'')*'|\$\$|\$\d+|[A-Za-z_][\w.]*|\d[\d.e]*|<=|>=|<>|::|\|\||:=|->>|->|\S"
)
FUNCTION: Final = re.compile(r"^CREATE FUNCTION pulse\.(\w+)\(.*?\n\$\$;", re.DOTALL | re.MULTILINE)
_BEGINS: Final = {"WHERE", "ON", "AND", "OR", "WHEN", "IF", "ELSIF", "HAVING", "CHECK"}
_ENDS: Final = {
    *("AND", "OR", "THEN", "GROUP", "ORDER", "LIMIT", "FOR", "RETURNING", "ON", "UNION", "JOIN", "LEFT", "CROSS", "AS"),
    *("LOOP", "END", "WHERE", "WINDOW", "DO", "SET", "ELSE", "WHEN", ",", ";", "$$", "STRATEGY", "OFFSET", "EXECUTE"),
}
_DEFINED: Final = {"CONFLICT", "FUNCTION", "SCHEMA", "TABLE", "SEQUENCE", "UPDATE", "DELETE", "TRUNCATE", "REPLACE"}
_BOUNDS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_LEFT_OUT: Final = (
    r"\s+FOR UPDATE(?: OF \w+)?(?: SKIP LOCKED| NOWAIT)?",
    r" SKIP LOCKED",
    r"\bDISTINCT(?: ON \([^)]*\))? ",
    r" DESC\b(?: NULLS LAST)?",
    r"\bLEFT (?=JOIN)",
    r"\s+ON CONFLICT(?: \([^)]*\))? DO NOTHING",
    r"\bPERFORM [^;]*;",
    r"\b\w+\.\w+ := [^;]*;",
    r" NULLS NOT DISTINCT",
    r"\s+ORDER BY [\w.]+(?: DESC)?(?:, [\w.]+(?: DESC)?)*",
    r"\s+FILTER \(WHERE [^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*\)",
)
_WRITES: Final = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) \w")
_CHOICES: Final = {"coalesce", "greatest", "least", "num_nonnulls", "in"}


class Word(NamedTuple):
    """One word of a text, and how many parentheses and brackets are open before it."""

    text: str
    span: Span
    depth: int


def mutants_of(where: str, *, fine: bool = True) -> list[Mutant]:
    """Without *fine*: the guards, whose keys no other mutant has."""
    return numbered(one for one in _all(where) if fine or one.is_guard)


def _all(where: str) -> Iterator[Mutant]:
    text = text_of(where)
    functions = [(match[1], match.span()) for match in FUNCTION.finditer(text)] if where == SCHEMA else []
    writes = where == SCHEMA or _WRITES.search(text) is not None
    for span, instead in _changes(text):
        scope = next((name for name, (start, end) in functions if start <= span.start and span.end <= end), "")
        yield Mutant(where, scope, span, instead, is_guard=writes and instead.endswith("OR true)"))


def _changes(text: str) -> Iterator[tuple[Span, str]]:
    words = _words(text)
    for at, word in enumerate(words):
        if word.text in _BOUNDS:
            yield word.span, _BOUNDS[word.text]
        if word.text.upper() in _BEGINS or _opens_condition(words, at):
            yield from _conditions(text, words, at)
        if word.text == "SET" and words[at + 1].text != "search_path":
            yield from _items(text, words, at + 1, {"WHERE", "FROM", "RETURNING", ";"})
        if word.text == "LIMIT" and words[at + 1].text != "1":
            end = _end_of(words, at + 1)
            yield (
                Span(words[at + 1].span.start, words[end].span.end),
                f"greatest(100000, {_piece(text, words, at + 1, end)})",
            )
        if word.text.lower() in _CHOICES and words[at + 1].text == "(" and not _is_clock(words, at):
            yield from _items(text, words, at + 2, set())
        if word.text in {"+", "-", "*", "/"} and _is_binary(words, at):
            yield Span(words[at - 1].span.end, words[_operand(words, at + 1)].span.end), ""
    for pattern in _LEFT_OUT:
        for match in re.finditer(pattern, text):
            if not _in_comment(text, match.start()):
                yield Span(*match.span()), ""


def _words(text: str) -> list[Word]:
    found, depth = [], 0
    for match in _TOKEN.finditer(text):
        if match[0].startswith("--"):
            continue
        depth -= match[0] in {")", "]"}
        found.append(Word(match[0], Span(*match.span()), depth))
        depth += match[0] in {"(", "["}
    return found


def _conditions(text: str, words: list[Word], at: int) -> Iterator[tuple[Span, str]]:
    """What follows a word such as WHERE, until the next such word."""
    end = _end_of(words, at + 1)
    if end <= at or _defines(words, at):
        return
    if words[at].text == "AND" and _is_between(words, at):
        return
    span, piece = Span(words[at + 1].span.start, words[end].span.end), _piece(text, words, at + 1, end)
    after = words[end + 1].text if end + 1 < len(words) else ""
    if piece == "true":  # LEFT JOIN LATERAL ... ON true
        return
    if words[at].text != "OR" and after != "OR":
        yield span, f"({piece} OR true)"
    if words[at].text in {"OR", "WHEN", "IF", "ELSIF"} or after == "OR":
        yield span, f"({piece} AND false)"


def _defines(words: list[Word], at: int) -> bool:
    """Whether the word is one of a definition (``CREATE INDEX i ON t``), ends a block, or names a value or an error."""
    before, after = words[at - 1].text, words[at + 1].text
    if words[at].text == "ON" and (
        words[at - 2].text == "INDEX" or before in {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
    ):
        return True
    is_value = words[at].text == "WHEN" and (before == "EXCEPTION" or after.startswith("'"))
    return is_value or after in _DEFINED or (words[at].text == "IF" and before in {"END", "SCHEMA"})


def _opens_condition(words: list[Word], at: int) -> bool:
    if words[at].text != "(":
        return False
    inside = words[at].depth + 1
    for place in range(at + 1, len(words)):
        if words[place].depth < inside:
            return False
        if words[place].depth == inside and words[place].text in {"AND", "OR"} and not _is_between(words, place):
            return True
        if words[place].depth == inside and words[place].text in {"WHERE", "SELECT", "CASE", ","}:
            return False
    return False


def _end_of(words: list[Word], at: int) -> int:
    """The last word of what begins at *at*: up to the next word of the same depth that ends it."""
    depth, between, cases = words[at].depth, False, 0
    for place in range(at, len(words)):
        word = words[place]
        if word.depth < depth:
            return place - 1
        if word.depth > depth:
            continue
        if word.text == "CASE":
            cases += 1
        elif cases:
            cases -= word.text == "END"
        elif word.text == "BETWEEN":
            between = True
        elif word.text == "AND" and between:
            between = False
        elif (word.text in _ENDS or _begins_from(words, place)) and place > at:
            return place - 1
    return len(words) - 1


def _begins_from(words: list[Word], at: int) -> bool:
    """FROM, but not that of IS DISTINCT FROM."""
    return words[at].text == "FROM" and words[at - 1].text != "DISTINCT"


def _is_between(words: list[Word], at: int) -> bool:
    for place in range(at - 1, -1, -1):
        if words[place].depth < words[at].depth:
            return False
        if words[place].depth == words[at].depth:
            if words[place].text == "BETWEEN":
                return True
            if words[place].text in {"AND", "OR", "WHERE", "ON", "WHEN"}:
                return False
    return False


def _items(text: str, words: list[Word], at: int, ends: set[str]) -> Iterator[tuple[Span, str]]:
    depth, starts = words[at].depth, [at]
    place = at
    while place < len(words) and not (
        words[place].depth < depth or (words[place].depth == depth and words[place].text in ends)
    ):
        if words[place].text == "," and words[place].depth == depth:
            starts.append(place + 1)
        place += 1
    if len(starts) > 1:
        for number, start in enumerate(starts):
            if number + 1 < len(starts):
                yield Span(words[start].span.start, words[starts[number + 1]].span.start), ""
            else:
                yield Span(words[start - 2].span.end, words[place - 1].span.end), ""


def _is_binary(words: list[Word], at: int) -> bool:
    before, after = words[at - 1].text, words[at + 1].text
    return (
        (before[-1].isalnum() or before[-1] in ")]'") and not before.isupper() and after not in {")", ",", ".", "FROM"}
    )


def _is_clock(words: list[Word], at: int) -> bool:
    """coalesce($16, now()): the time that a test gives."""
    return words[at + 2].text.startswith("$") and words[at + 4].text in {"now", "clock_timestamp"}


def _operand(words: list[Word], at: int) -> int:
    end = at + (words[at].text == "interval")
    while end + 1 < len(words):
        following = words[end + 1]
        if following.text in {"(", "["} and words[end].text not in {"(", "["}:
            end = next(
                place
                for place in range(end + 2, len(words))
                if words[place].depth == following.depth and words[place].text in {")", "]"}
            )
        elif words[end].text == "(":
            end = next(
                place
                for place in range(end + 1, len(words))
                if words[place].depth == words[end].depth and words[place].text == ")"
            )
        elif following.text in {"::", "."}:
            end += 2
        else:
            break
    return end


def _piece(text: str, words: list[Word], start: int, end: int) -> str:
    return text[words[start].span.start : words[end].span.end]


def _in_comment(text: str, at: int) -> bool:
    return "--" in text[text.rfind("\n", 0, at) + 1 : at]
