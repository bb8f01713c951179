"""
Rule 8: docstrings, comments, messages and pages are plain English.

What makes a reader stumble is in ``lists/riddles.txt``: a pattern a line, then `` => `` and what to write instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from rules.exceptions import Exceptions
from rules.tree import Offence, Source, Tree

RIDDLES: Final = ".ci/rules/lists/riddles.txt"
MIN_SPACES: Final = 2  # of a string that people read; names and keys have none
_COMMENT: Final = {
    ".py": re.compile(r"(?:^|.*  )\s*#\s?(?P<text>.*)$"),  # the formatter puts two spaces before a comment
    ".sql": re.compile(r"^(?:[^']|'[^']*')*?--\s?(?P<text>.*)$"),
}
_CODE_BLOCK: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE_CODE: Final = re.compile(r"`[^`\n]*`")


def check(tree: Tree, allowed: Exceptions) -> Iterator[Offence]:
    """Each place where a listed pattern is found."""
    riddles = list(_riddles(tree))
    for source in tree.sources.values():
        if not allowed.has("prose", source.path):
            for line, text in passages(source):
                yield from _find(source, line, text, riddles)


def _riddles(tree: Tree) -> Iterator[tuple[re.Pattern[str], str]]:
    source = tree.sources.get(RIDDLES)
    for line in source.lines if source is not None else []:
        if line and not line.startswith("#"):
            pattern, _, instead = line.partition(" => ")
            yield re.compile(pattern.strip(), re.IGNORECASE), instead.strip()


def _find(source: Source, line: int, text: str, riddles: list[tuple[re.Pattern[str], str]]) -> Iterator[Offence]:
    for pattern, instead in riddles:
        for found in pattern.finditer(text):
            at = line + text.count("\n", 0, found.start())
            yield Offence(source.path, at, f"{' '.join(found[0].split())!r}: {instead}")


def passages(source: Source) -> Iterator[tuple[int, str]]:
    """Line and text of each passage of prose: docstrings, messages, runs of comments, pages without their code."""
    if source.suffix == ".md":
        yield 1, _INLINE_CODE.sub("`…`", _CODE_BLOCK.sub(lambda found: "\n" * found[0].count("\n"), source.text))
        return
    if source.suffix not in _COMMENT or source.is_generated:
        return
    if source.suffix == ".py":
        yield from _docstrings(source)
        if source.is_product:
            yield from _messages(source)
    yield from _comments(source, _COMMENT[source.suffix])


def _docstrings(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.definitions:
        if (text := ast.get_docstring(node, clean=False)) is not None:
            yield node.body[0].lineno, text


def _messages(source: Source) -> Iterator[tuple[int, str]]:
    """Strings of a few words or more, of which no docstring is one."""
    docstrings = {
        id(node.body[0].value) for node in source.definitions if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in source.nodes:
        match node:
            case ast.Constant(value=str(text)) if text.count(" ") >= MIN_SPACES and id(node) not in docstrings:
                yield node.lineno, text
            case _:
                pass


def _comments(source: Source, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Comments, those of neighbouring lines as one passage: a sentence may go over several."""
    begin, texts = 0, list[str]()
    for number, line in enumerate(source.lines, 1):
        found = pattern.match(line) if ("#" in line or "--" in line) else None
        if found is not None and texts and begin + len(texts) == number:
            texts.append(found["text"])
        elif found is not None or texts:
            if texts:
                yield begin, "\n".join(texts)
            begin, texts = number, [found["text"]] if found is not None else []
    if texts:
        yield begin, "\n".join(texts)
