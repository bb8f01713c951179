"""Exceptions and repairs: the lists can only shrink, and the command fails where they do not fit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rules import to_repair
from rules.__main__ import RULES, main
from rules.exceptions import LIST, Exceptions
from rules.names import PLAIN_WORDS
from rules.tree import Offence
from tests.rules.kit import lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    write(tmp_path, LIST, "")
    write(tmp_path, to_repair.LIST, "")
    write(tmp_path, PLAIN_WORDS, "a\nadmin\nschema\nstore\n")
    write(tmp_path, "pulse/__init__.py", '"""P.\n\n- a: the module a\n- store: the database\n"""\n')
    write(tmp_path, "pulse/store/__init__.py", '"""S.\n\n- admin: the schema of it\n"""\n')
    write(tmp_path, "pulse/store/admin/__init__.py", '"""A.\n\n- schema: the versions of it\n"""\n')
    write(tmp_path, "pulse/store/admin/schema.py", f"RELEASES: Final = {{1: '0.1.0'}}\n{lines(40)}")
    write(tmp_path, "pulse/a.py", "".join(f"y{number} = {number}\n" for number in range(451)))
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, "utf-8")


def test_the_command_fails_until_what_is_wrong_is_listed_or_repaired(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is repaired must leave the list; what is new cannot enter it."""
    assert main([], root) == 1
    assert "pulse/a.py: 451 lines" in capsys.readouterr().out
    assert main(["--rewrite"], root) == 0
    assert '"pulse/a.py" = 1' in (root / to_repair.LIST).read_text()
    assert main([], root) == 0
    write(root, "pulse/store/admin/schema.py", f"RELEASES: Final = {{1: '0.1.0'}}\n{lines(500)}")
    assert main([], root) == 1
    assert main(["--rewrite"], root) == 1
    assert "sizes: from 1 to 2" in capsys.readouterr().out
    write(root, "pulse/a.py", "".join(f"z{number} = {number}\n" for number in range(45)))
    write(root, "pulse/store/admin/schema.py", f"RELEASES: Final = {{1: '0.1.0'}}\n{lines(45)}")
    assert main([], root) == 1
    assert "pulse/a.py: 1 listed, 0 found" in capsys.readouterr().out
    assert main(["--rewrite"], root) == 0
    assert main([], root) == 0
    write(root, "pulse/a.py", lines(451))
    assert main(["--rewrite"], root) == 1


def test_every_rule_is_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '"""Whoever."""\nclass Desk:\n    def f(self):\n        self.a.b.c()\n' + "".join(
        f"        y{number} = {number}\n" for number in range(40)
    )
    write(root, "pulse/b.py", text)
    write(root, "pulse/store/admin/upgrade/versions/2.sql", "")
    write(root, ".ci/rules/lists/riddles.txt", "whoever => name them\n")
    assert main([], root) == 1
    shown = capsys.readouterr().out
    assert [name for name in RULES if f"[{name}]" not in shown] == []


def test_an_exception_is_needed_and_has_a_reason(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that excepts nothing, and one without a reason, are errors; so is a list of no rule."""
    write(root, LIST, '[long_files]\n"pulse/a.py" = " "\n"pulse/b.py" = "y"\n')
    write(root, to_repair.LIST, "[size]\n")
    assert main([], root) == 1
    shown = capsys.readouterr().out
    assert "pulse/a.py: an exception needs a reason" in shown
    assert "pulse/b.py: breaks the rule no more" in shown
    assert "there is no rule [size]" in shown


def test_the_lists_themselves_are_never_to_be_repaired_later() -> None:
    """A plain word that nothing uses cannot be put on the list."""
    offence = Offence(PLAIN_WORDS, 0, "unused")
    assert to_repair.count({"names": [offence]}) == {"names": {}}
    assert list(to_repair.compare("names", [offence], {PLAIN_WORDS: 1}))


def test_more_and_fewer_than_listed_are_both_wrong() -> None:
    two = [Offence("a", 1, "x"), Offence("a", 2, "y")]
    assert list(to_repair.compare("prose", two, {"a": 2})) == []
    assert [str(one) for one in to_repair.compare("prose", two, {"a": 1})][:2] == ["a:1: x", "a:2: y"]
    assert [one.path for one in to_repair.compare("prose", two, {"a": 3})] == [to_repair.LIST]


def test_names_are_excepted_in_their_section_alone() -> None:
    """A path that may be long may not be short."""
    allowed = Exceptions({"long_files": {"a": "y"}})
    assert not allowed.has("short_files", "a")
    assert allowed.has("long_files", "a")
    assert list(allowed.unneeded()) == []
