"""Rule 1: entries in a folder, lines in a file."""

from __future__ import annotations

from rules import sizes
from tests.rules.kit import lines, said


def folder(count: int) -> dict[str, str]:
    return {"pulse/a/__init__.py": "", **{f"pulse/a/m{number}.py": lines(40) for number in range(count)}}


def test_a_folder_has_twelve_entries_at_most() -> None:
    """The thirteenth is one too many; files and folders count alike, the package's own marker does not."""
    assert said(sizes.check, folder(12)) == []
    assert said(sizes.check, folder(13)) == ["pulse/a: 13 entries; at most 12 are allowed"]
    assert said(sizes.check, {**folder(12), "pulse/a/b/deep.py": lines(40)}) == [
        "pulse/a: 13 entries; at most 12 are allowed"
    ]


def test_a_file_has_450_lines_at_most() -> None:
    """In Python and SQL, in the product and outside; pages may be longer."""
    long = {"pulse/a.py": lines(451), "tests/b.sql": "--\n" * 451, "docs/c.md": "x\n" * 451}
    assert [line.split(":")[0] for line in said(sizes.check, long)] == ["pulse/a.py", "tests/b.sql"]
    assert said(sizes.check, {"pulse/a.py": lines(450), "tests/b.sql": "--\n" * 450}) == []


def test_a_module_of_the_product_has_40_lines_at_least() -> None:
    """But not ``__init__`` and ``__main__``, and nothing outside the product."""
    short = {"pulse/a.py": lines(39), "pulse/__init__.py": "", "pulse/__main__.py": "", "tests/test_a.py": lines(9)}
    assert [line.split(":")[0] for line in said(sizes.check, short)] == ["pulse/a.py"]
    assert said(sizes.check, {"pulse/a.py": lines(40)}) == []


def test_exceptions_are_by_name() -> None:
    tree = {**folder(13), "pulse/b.py": lines(451), "pulse/c.py": lines(39)}
    reasons = {"folders": {"pulse/a": "y"}, "long_files": {"pulse/b.py": "y"}, "short_files": {"pulse/c.py": "y"}}
    assert len(said(sizes.check, tree)) == 3
    assert said(sizes.check, tree, reasons=reasons) == []
