"""Rule 3: names are made of the glossary's words and of plain ones; a class name is used once in the product."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rules.exceptions import Exceptions
from rules.tree import PACKAGES, Offence, Source, Tree

GLOSSARY: Final = "docs/glossary.md"
PLAIN_WORDS: Final = ".ci/rules/lists/plain_words.txt"
BANNED: Final = frozenset({"desk", "office", "visit", "manners", "crowd", "room", "place", "known", "news", "told"})
_CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|[a-z]+|[0-9]+")
_ROW: Final = re.compile(r"^\| (?P<term>[^|]+?) \| (?P<meaning>[^|]+?) \|$")
_HEAD: Final = frozenset({"word", "---"})


def check(tree: Tree, allowed: Exceptions) -> Iterator[Offence]:
    """Words that are banned or explained nowhere, plain words in no name, class names that are used twice."""
    glossary, plain = glossary_words(tree), plain_words(tree)
    used: set[str] = set()
    for source in tree.python():
        named = [(0, _module_name(source)), *((node.lineno, node.name) for node in source.classes)]
        for line, name in named:
            used.update(words(name))
            for word in words(name):
                if problem := _problem(word, glossary, plain):
                    yield Offence(source.path, line, f"{name}: {word!r} {problem}", name=name.lstrip("_"))
    yield from _idle(plain, glossary, used)
    yield from _twice(tree, allowed)


def _problem(word: str, glossary: set[str], plain: set[str]) -> str | None:
    """What is wrong with *word* in a name; None: nothing."""
    if _is_in(word, BANNED):
        return "is banned: it names no concept of the field"
    return None if _is_in(word, glossary | plain) else f"is neither in {GLOSSARY} nor in {PLAIN_WORDS}"


def _idle(plain: set[str], glossary: set[str], used: set[str]) -> Iterator[Offence]:
    """Plain words that the list need not have."""
    for word in sorted(plain):
        if word in glossary:
            yield Offence(PLAIN_WORDS, 0, f"{word!r} is in {GLOSSARY}: take it off this list")
        elif not any(_is_in(part, {word}) for part in used):
            yield Offence(PLAIN_WORDS, 0, f"{word!r} is in no name any more: take it off this list")


def words(name: str) -> list[str]:
    """The words of a name in snake_case or CamelCase, in lower case."""
    return [found.lower() for part in name.split("_") for found in _CAMEL.findall(part) if not found.isdigit()]


def glossary_words(tree: Tree) -> set[str]:
    """The words of the terms in the glossary."""
    source = tree.sources.get(GLOSSARY)
    rows = [] if source is None else [_ROW.match(line) for line in source.lines]
    terms = [row["term"] for row in rows if row is not None and row["term"] not in _HEAD]
    return {word for term in terms for word in re.findall(r"[a-z]+", term.lower().replace("-", ""))}


def plain_words(tree: Tree) -> set[str]:
    """The words that need no explanation."""
    source = tree.sources.get(PLAIN_WORDS)
    return set() if source is None else {line.strip() for line in source.lines if line.strip()}


def _is_in(word: str, among: set[str] | frozenset[str]) -> bool:
    """Whether *word* is one of these, or the plural of one."""
    singulars = {word, word.removesuffix("s"), word.removesuffix("es"), re.sub(r"ies$", "y", word)}
    return not singulars.isdisjoint(among)


def _module_name(source: Source) -> str:
    """The last part of its dotted name; "" at the root of a package."""
    if source.name != "__init__.py":
        return source.name.removesuffix(".py")
    return "" if source.folder in PACKAGES.values() else source.folder.rpartition("/")[2]


def _twice(tree: Tree, allowed: Exceptions) -> Iterator[Offence]:
    first: dict[str, str] = {}
    for source in sorted(tree.python(), key=lambda one: one.path):
        if source.is_generated:
            continue
        for node in source.classes:
            name = node.name.lstrip("_")
            where = first.setdefault(name, f"{source.path}:{node.lineno}")
            if where != f"{source.path}:{node.lineno}" and not allowed.has("same_class_name", name):
                yield Offence(source.path, node.lineno, f"{name}: {where} has a class of that name", name=name)
