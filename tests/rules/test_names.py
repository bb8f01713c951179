"""Rule 3: the words of modules and classes."""

from __future__ import annotations

import pytest

from rules import names
from tests.rules.kit import said

GLOSSARY = "| word | meaning |\n|---|---|\n| back-off | a wait |\n| dead letter | a failed job |\n"
PLAIN = "job\n"


def tree(**modules: str) -> dict[str, str]:
    used = {"pulse/job.py": "class DeadLetters:\n    pass\n"}
    return {
        names.GLOSSARY: GLOSSARY, names.PLAIN_WORDS: PLAIN, **used,
        **{f"pulse/{name}.py": text for name, text in modules.items()},
    }  # fmt: skip


def test_words_are_explained_or_plain() -> None:
    """In whatever case and number; a word of neither list is named with its class."""
    assert said(names.check, tree(backoff="class _BackoffJob:\n    pass\n", jobs="")) == []
    assert said(names.check, tree(backoff="def f():\n    class JobFrobnicator:\n        pass\n")) == [
        f"pulse/backoff.py:2: JobFrobnicator: 'frobnicator' is neither in {names.GLOSSARY} nor in {names.PLAIN_WORDS}"
    ]
    assert len(said(names.check, tree(frobnicate=""))) == 1
    assert len(said(names.check, {**tree(), "pulse/frobnicate/__init__.py": ""})) == 1


@pytest.mark.parametrize("name", ["Desk", "OfficeJob", "JobRooms", "_Told"])
def test_banned_words_are_banned_wherever_they_are_listed(name: str) -> None:
    """Also in the plural, and though a list had them."""
    listed = {**tree(backoff=f"class {name}:\n    pass\n"), names.PLAIN_WORDS: "job\ndesk\noffice\nroom\ntold\n"}
    assert [line for line in said(names.check, listed) if "is banned" in line]


def test_a_class_name_is_used_once() -> None:
    twin = "class Job:\n    pass\n"
    assert said(names.check, tree(backoff=twin, jobs="class _Job:\n    pass\n")) == [
        "pulse/jobs.py:1: Job: pulse/backoff.py:1 has a class of that name"
    ]
    assert said(names.check, tree(backoff=twin, jobs=f"# Generated from x.py\n{twin}")) == []


def test_plain_words_are_used() -> None:
    """A word that no name has any more, or that the glossary explains, is taken off the list."""
    assert said(names.check, {**tree(), names.PLAIN_WORDS: "job\nletter\nrobot\n"}) == [
        f"{names.PLAIN_WORDS}: 'letter' is in {names.GLOSSARY}: take it off this list",
        f"{names.PLAIN_WORDS}: 'robot' is in no name any more: take it off this list",
    ]
