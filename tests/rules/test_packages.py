"""Rule 6: each package lists its modules."""

from __future__ import annotations

import pytest

from rules import packages
from tests.rules.kit import said

GOOD = '"""A.\n\n- b: does this\n  and that\n- c: does more of it\n- sql: the statements\n"""\n'
TREE = {"pulse/__init__.py": GOOD, "pulse/b.py": "", "pulse/c/__init__.py": '"""C."""', "pulse/sql/x.sql": ""}


def test_a_package_lists_its_modules_and_folders() -> None:
    """Those with data, too; ``__main__`` and files that are no modules are left out."""
    assert said(packages.check, {**TREE, "pulse/__main__.py": "", "pulse/py.typed": ""}) == []


@pytest.mark.parametrize(("old", "new", "says"), [
    ("- b: does this\n", "", "does not list b: add '- b: what it does'"),
    ("- sql: the", "- lists: the", "does not list sql: add '- sql: what it does'"),
    ("- c:", "- ca: does that\n- c:", "lists ca, which is not in the folder"),
    (
        "- b: does this\n  and that\n- c: does more of it\n",
        "- c: does more\n- b: does this\n",
        "order of the alphabet",
    ),
    ("- c:", "- b: once more\n- c:", "order of the alphabet"),
    ("does more of it", "more", "says too little of c: 'more'"),
])  # fmt: skip
def test_list_and_folder_are_compared(old: str, new: str, says: str) -> None:
    offences = said(packages.check, {**TREE, "pulse/__init__.py": GOOD.replace(old, new)})
    assert any(says in offence for offence in offences)


def test_a_package_needs_an_init() -> None:
    without = {path: text for path, text in TREE.items() if path != "pulse/__init__.py"}
    assert said(packages.check, without)[0].startswith("pulse: a package needs an __init__.py")
