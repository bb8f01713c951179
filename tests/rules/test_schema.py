"""Rule 7: one schema version for each release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from rules import schema
from tests.rules.kit import said


def tree(releases: str, upgrades: Iterable[int] = (), frozen: Iterable[int] = ()) -> dict[str, str]:
    return {
        schema.HOME: f"RELEASES: Final = {releases}\n",
        **{f"{schema.UPGRADES}/{version}.sql": "" for version in upgrades},
        **{f"tests/pulse/store/admin/schema_v{version}.sql": "" for version in frozen},
    }


DRAFT = "{1: '0.1.0.dev3'}"
FIRST = "{1: '0.1.0'}"
SECOND = "{1: '0.1.0', 2: '0.2.0'}"
NEXT = "{1: '0.1.0', 2: '0.2.0.dev1'}"


@pytest.mark.parametrize(("files", "tags"), [
    (tree(DRAFT), []),
    (tree(FIRST), []),
    (tree(FIRST, frozen=[1]), []),
    (tree(FIRST, frozen=[1]), ["v0.1.0"]),
    (tree(NEXT, upgrades=[2], frozen=[1]), ["0.1.0", "nightly"]),
    (tree(SECOND, upgrades=[2], frozen=[1, 2]), ["v0.1.0", "v0.2.0"]),
], ids=["draft", "before the tag", "to be tagged", "first release", "next draft", "second release"])  # fmt: skip
def test_versions_that_fit_their_releases(files: dict[str, str], tags: list[str]) -> None:
    assert said(schema.check, files, tags=tags) == []


@pytest.mark.parametrize(("files", "tags", "says"), [
    ({}, [], "has no RELEASES"),
    (tree(SECOND, upgrades=[2]), [], "versions [1, 2] are not released"),
    (tree(DRAFT, upgrades=[2]), [], "the upgrade of version 2 belongs to no release"),
    (tree(DRAFT, frozen=[1]), [], "the frozen schema of version 1 belongs to no release"),
    (tree(FIRST), ["v0.1.0"], "there is no frozen schema of version 1"),
    (tree(NEXT, frozen=[1]), ["v0.1.0"], "there is no upgrade of version 2"),
    (tree("{1: '0.1.0', 3: '0.2.0'}", upgrades=[3], frozen=[1]), ["v0.1.0"], "without a gap"),
    (tree("{1: '0.1.0', 2: '0.1.0'}", upgrades=[2], frozen=[1, 2]), ["v0.1.0"], "name the same release"),
])  # fmt: skip
def test_versions_that_do_not(files: dict[str, str], tags: Sequence[str], says: str) -> None:
    assert any(says in offence for offence in said(schema.check, files, tags=tags))
