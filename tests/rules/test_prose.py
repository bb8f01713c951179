"""Rule 8: phrases that make a reader stumble."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules import prose
from tests.rules.kit import said

RIDDLES = Path(__file__).resolve().parents[2] / prose.RIDDLES
LIST = r"# a comment" + "\n" + r"\bblue\s+moon\b => say how often" + "\n"


def tree(path: str, text: str) -> dict[str, str]:
    return {prose.RIDDLES: LIST, path: text}


@pytest.mark.parametrize(("path", "text", "line"), [
    ("pulse/a.py", '"""A blue moon."""\n', 1),
    ("tests/a.py", 'def f():\n    """\n    A\n    blue moon."""\n', 4),
    ("pulse/a.py", "x = 1\n# Once in a blue\n# moon.\n", 2),
    ("pulse/a.py", "x = 1  # a blue moon\n", 1),
    ("pulse/a.py", "raise E('once in a blue moon')\n", 1),
    ("schema.sql", "SELECT 1;  -- a blue moon\n", 1),
    ("docs/a.md", "x\n\nOnce in a blue moon, and\nmore.\n", 3),
])  # fmt: skip
def test_riddles_are_found_with_their_line(path: str, text: str, line: int) -> None:
    """In docstrings, comments, messages and pages, also over the end of a line."""
    assert said(prose.check, tree(path, text)) == [f"{path}:{line}: 'blue moon': say how often"]


@pytest.mark.parametrize(("path", "text"), [
    ("docs/a.md", "```\nblue moon\n```\nand `blue moon`\n"),
    ("tests/a.py", "x = 'once in a blue moon'\n"),
    ("pulse/a.py", "x = blue_moon\n"),
    ("schema.sql", "SELECT 'a blue moon';\n"),
    ("pulse/a.txt", "blue moon\n"),
    ("pulse/a.py", '"""Generated from x.py, once in a blue moon."""\n'),
])  # fmt: skip
def test_code_is_no_prose(path: str, text: str) -> None:
    """Nor is what a program wrote, nor a string that a test expects."""
    assert said(prose.check, tree(path, text)) == []


@pytest.mark.parametrize("sentence", [
    "Whom nobody has put in: nothing is to be done of what is told.",
    "It takes from everybody what that of the workers stands above.",
    "What SQL cannot reckon, a scheduler does.",
])  # fmt: skip
def test_the_list_knows_what_made_a_newcomer_stumble(sentence: str) -> None:
    files = {prose.RIDDLES: RIDDLES.read_text("utf-8"), "docs/a.md": sentence}
    assert said(prose.check, files)
