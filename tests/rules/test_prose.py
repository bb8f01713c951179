"""Rule 8: phrases that make a reader stumble."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules import prose
from tests.rules.kit import said

RIDDLES = Path(__file__).resolve().parents[2] / prose.RIDDLES
LIST = r"# a comment" + "\n" + r"\bis\s+told\b => say who tells it" + "\n"


def tree(path: str, text: str) -> dict[str, str]:
    """One file, and a list of one riddle."""
    return {prose.RIDDLES: LIST, path: text}


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("pulse/a.py", '"""Who is told."""\n', 1),
        ("tests/a.py", 'def f():\n    """\n    Who\n    is told."""\n', 4),
        ("pulse/a.py", "x = 1\n# Somebody is\n# told of it.\n", 2),
        ("pulse/a.py", "x = 1  # who is told\n", 1),
        ("pulse/a.py", "raise E('it is told so')\n", 1),
        ("schema.sql", "SELECT 1;  -- who is told\n", 1),
        ("docs/a.md", "x\n\nSomebody *is told*, and\nmore.\n".replace("*", ""), 3),
    ],
)
def test_riddles_are_found_with_their_line(path: str, text: str, line: int) -> None:
    """In docstrings, comments, messages and pages, also over the end of a line."""
    assert said(prose.check, tree(path, text)) == [f"{path}:{line}: 'is told': say who tells it"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "```\nis told\n```\nand `is told`\n"),
        ("tests/a.py", "x = 'it is told so'\n"),
        ("pulse/a.py", "x = is_told\n"),
        ("schema.sql", "SELECT 'who is told';\n"),
        ("pulse/a.txt", "is told\n"),
        ("pulse/a.py", '"""DO NOT CHANGE: who is told."""\n'),
    ],
)
def test_code_is_no_prose(path: str, text: str) -> None:
    """Nor is what a program wrote, nor a string that a test expects."""
    assert said(prose.check, tree(path, text)) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Whom nobody has put in: nothing is to be done of what is told.",
        "It takes from everybody what that of the workers stands above.",
        "What SQL cannot reckon, a scheduler does.",
    ],
)
def test_the_list_knows_what_made_a_newcomer_stumble(sentence: str) -> None:
    """Sentences of the kind that the list was made for."""
    files = {prose.RIDDLES: RIDDLES.read_text("utf-8"), "docs/a.md": sentence}
    assert said(prose.check, files)
