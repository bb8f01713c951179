"""
The code blocks of the documentation: which there are, and which of them say that they do not run.

A block that cannot run says why in a comment right above it, ``<!-- not run: REASON -->``. What a page needs to run and
no reader needs to see is in ``<!-- invisible-code-block: LANGUAGE ... -->``, Sybil's form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sybil import Document, Region, Sybil
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, FencedCodeBlockLexer
from sybil.typing import Evaluator

ROOT: Final = Path(__file__).resolve().parents[2]
# What other tests hold against the code, and what is no code.
ELSEWHERE: Final[Mapping[str, str]] = {
    "frames": "tests/pulse/protocol/test_protocol_page.py", "hex": "tests/pulse/protocol/test_protocol_page.py",
    "mermaid": "tests/docs/test_state_machine.py", "text": "not code",
}  # fmt: skip
LANGUAGES: Final = ("console", "json", "python", "sh", "sql", "toml")
_MARK: Final = re.compile(r"<!-- not run: (?P<reason>[^>]+?) -->\n\Z")
_LEXERS: Final = (
    FencedCodeBlockLexer(r"[^\n]*", mapping={"language": "language", "source": "source"}),
    DirectiveInHTMLCommentLexer(
        "invisible-code-block", r"[a-z]+", mapping={"arguments": "language", "source": "source"}
    ),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block; *reason*: why it does not run, None if it does."""

    page: str
    line: int
    language: str
    source: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.language}"


def pages() -> list[Path]:
    """The pages whose blocks run: the README and all in docs but the decision records."""
    return [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def regions(document: Document) -> Iterator[tuple[Region, str, str | None]]:
    """Each block with its language and, where it does not run, the reason."""
    for lexer in _LEXERS:
        for region in lexer(document):
            mark = _MARK.search(document.text[: region.start])
            yield region, str(region.lexemes["language"]).strip(), mark["reason"] if mark else None


def blocks(page: Path) -> list[Block]:
    document = Document(page.read_text("utf-8"), str(page))
    return [
        Block(
            name_of(page), document.text.count("\n", 0, region.start) + 1, language, str(region.lexemes["source"]),
            reason,
        )
        for region, language, reason in regions(document)
    ]  # fmt: skip


def parsed(page: Path, evaluators: Mapping[str, Evaluator]) -> Document:
    """A page with the blocks that run, each with the evaluator of its language."""

    def parser(document: Document) -> Iterable[Region]:
        for region, language, reason in regions(document):
            if reason is None and language in evaluators:
                region.parsed, region.evaluator = region.lexemes["source"], evaluators[language]
                yield region

    return Sybil([parser]).parse(page)


if __name__ == "__main__":  # .ci/run shows what does not run
    for block in (block for page in pages() for block in blocks(page)):
        if block.reason is not None:
            print(f"{block}: {block.reason}")  # noqa: T201 - it is what this is for
