"""
Rule 7: one version, one frozen schema and one upgrade for each release that changes the schema.

``RELEASES`` in the store says which release brought each version. A release is a tag of the repository, ``1.2.3`` or
``v1.2.3``: a checkout without its tags cannot be checked once there was one. The frozen schema comes before
the tag.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from rules.exceptions import Exceptions
from rules.tree import Offence, Tree

HOME: Final = "pulse/store/admin/schema.py"
UPGRADES: Final = "pulse/store/admin/upgrade/versions"
_RELEASE: Final = re.compile(r"^v?(?P<release>\d+\.\d+\.\d+)$")
_UPGRADE: Final = re.compile(rf"^{UPGRADES}/(?P<version>\d+)\.sql$")
_FROZEN: Final = re.compile(r"^tests/.*schema_v(?P<version>\d+)\.sql$")


def check(tree: Tree, _allowed: Exceptions) -> Iterator[Offence]:
    """Versions, upgrades and frozen schemas that do not fit the releases."""
    releases = _releases(tree)
    if releases is None:
        yield Offence(HOME, 0, "has no RELEASES = {version: release}")
        return
    tagged = {found["release"] for tag in tree.tags if (found := _RELEASE.match(tag))}
    released = {version for version, release in releases.items() if release in tagged}
    versions = set(releases)
    if versions != set(range(1, len(versions) + 1)):
        yield Offence(HOME, 0, f"the versions are {sorted(versions)}: they count from 1, without a gap")
    if len(set(releases.values())) != len(releases):
        yield Offence(HOME, 0, "two versions name the same release: one release brings one version at most")
    unreleased = sorted(versions - released)
    if len(unreleased) > 1:
        yield Offence(HOME, 0, f"versions {unreleased} are not released: there is one such version at most")
    yield from _differences(_numbers(tree, _UPGRADE), versions - {1}, "upgrade", f"{UPGRADES}/{{}}.sql")
    named = {version for version, release in releases.items() if _RELEASE.match(release)}  # the tag comes later
    frozen = _numbers(tree, _FROZEN)
    yield from _differences(frozen, released | (named & frozen), "frozen schema", "tests/…/schema_v{}.sql")


def _releases(tree: Tree) -> dict[int, str] | None:
    source = tree.sources.get(HOME)
    for node in source.module.body if source is not None else []:
        match node:
            case ast.AnnAssign(target=ast.Name(id="RELEASES"), value=ast.Dict() as value):
                return {int(version): str(release) for version, release in ast.literal_eval(value).items()}
            case _:
                pass
    return None


def _numbers(tree: Tree, pattern: re.Pattern[str]) -> set[int]:
    return {int(found["version"]) for path in tree.sources if (found := pattern.match(path))}


def _differences(found: set[int], wanted: set[int], what: str, path: str) -> Iterator[Offence]:
    for version in sorted(wanted - found):
        yield Offence(path.format(version), 0, f"there is no {what} of version {version}")
    for version in sorted(found - wanted):
        yield Offence(path.format(version), 0, f"the {what} of version {version} belongs to no release")
