"""Rule 5: no eight equal lines twice."""

from __future__ import annotations

import pytest

from rules import duplicates
from tests.rules.kit import lines, said

EIGHT = lines(8)


def test_eight_equal_lines_are_found_once_however_many_they_are() -> None:
    """Whatever their indentation, and across blank lines; seven are none."""
    inside = "def f():\n" + "".join(f"\n    {line}\n" for line in EIGHT.splitlines())
    assert said(duplicates.check, {"pulse/a.py": EIGHT, "pulse/b.py": inside}) == [
        "pulse/b.py:3: 8 lines or more that are in pulse/a.py:1, too"
    ]
    assert len(said(duplicates.check, {"pulse/a.py": lines(30), "pulse/b.py": lines(30)})) == 1
    assert said(duplicates.check, {"pulse/a.py": lines(7), "pulse/b.py": lines(7)}) == []


def test_a_file_may_repeat_itself_as_little() -> None:
    assert len(said(duplicates.check, {"pulse/a.py": f"{EIGHT}y = 1\n{EIGHT}"})) == 1
    assert len(said(duplicates.check, {"pulse/a.sql": f"{EIGHT}--\n{EIGHT}"})) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pulse/b.py", f"# Generated from x.py\n{EIGHT}"),
        ("tests/b.py", EIGHT),
        ("pulse/store/admin/upgrade/versions/2.sql", EIGHT),
    ],
)
def test_what_is_generated_tests_and_upgrades_are_exempt(path: str, text: str) -> None:
    """A program keeps its own copies equal; an upgrade repeats what it replaces."""
    assert said(duplicates.check, {"pulse/a.py": EIGHT, path: text}) == []


def test_imports_are_no_copies() -> None:
    imports = "".join(f"import m{number}\n" for number in range(20)) + "if TYPE_CHECKING:\n" + "    import x\n" * 8
    assert said(duplicates.check, {"pulse/a.py": imports, "pulse/b.py": imports}) == []
