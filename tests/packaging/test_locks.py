"""The pins in locks/: all that pyproject.toml needs, with hashes, and from no registry."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.checking.markdown import DOCS

ROOT: Final = DOCS.parent
PROJECT: Final[Mapping[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
OWN: Final = PROJECT["project"]["name"]
EXTRAS: Final[Mapping[str, Sequence[str]]] = PROJECT["project"]["optional-dependencies"]
SERVER: Final = ("server", "cli", "trio", "ui", "metrics", "otel")
ASKED: Final[Mapping[str, Sequence[str]]] = {
    "server": [*PROJECT["project"]["dependencies"], *(one for extra in SERVER for one in EXTRAS[extra])],
    "all": [*PROJECT["project"]["dependencies"], *(one for extra in (*SERVER, "embedded") for one in EXTRAS[extra])],
    "dev": [*PROJECT["project"]["dependencies"], *(one for some in EXTRAS.values() for one in some)],
    "build": ["build", *PROJECT["build-system"]["requires"]],
    "tools": PROJECT["dependency-groups"]["tools"],
}
HASH: Final = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def text_of(lock: str) -> str:
    return (ROOT / "locks" / f"{lock}.lock").read_text("utf-8")


def pinned(lock: str) -> Iterator[tuple[Requirement, Sequence[str]]]:
    lines = "\n".join(line for line in text_of(lock).splitlines() if not line.lstrip().startswith("#"))
    for entry in re.sub(r"\s*\\\n\s*", " ", lines).splitlines():
        named, *_ = entry.partition(" --hash=")
        yield Requirement(named), HASH.findall(entry)


def versions(lock: str) -> dict[str, set[str]]:
    """Name → the versions that are pinned; more than one where they differ between Pythons or machines."""
    found: dict[str, set[str]] = {}
    for requirement, _ in pinned(lock):
        (one,) = requirement.specifier
        assert one.operator == "==", requirement
        found.setdefault(canonicalize_name(requirement.name), set()).add(one.version)
    return found


def test_nothing_else_is_there() -> None:
    assert {path.stem for path in (ROOT / "locks").iterdir()} == ASKED.keys()


@pytest.mark.parametrize("lock", ASKED)
def test_it_is_what_is_asked_for(lock: str) -> None:
    """Every dependency of pyproject.toml has a pin that it allows. Else: make lock."""
    found = versions(lock)
    for text in ASKED[lock]:
        asked = Requirement(text)
        if asked.name != OWN:
            assert canonicalize_name(asked.name) in found, f"{asked} is missing: make lock"
            allowed = [asked.specifier.contains(one) for one in found[canonicalize_name(asked.name)]]
            assert all(allowed), f"{asked}: make lock"


@pytest.mark.parametrize("lock", ASKED)
def test_every_file_is_known_by_its_hash(lock: str) -> None:
    """Without one pip would refuse all; and no line names a place, a file or a registry."""
    entries = list(pinned(lock))
    assert entries
    assert [str(one) for one, hashes in entries if not hashes] == []
    assert not re.search(r"://|^\s*-|@ ", re.sub(r"--hash=\S+", "", text_of(lock)), flags=re.MULTILINE)


@pytest.mark.parametrize("lock", ASKED)
def test_it_has_what_its_packages_need(lock: str) -> None:
    found = versions(lock)
    for name in found:
        try:
            needed = metadata.distribution(name).requires or ()
        except metadata.PackageNotFoundError:
            continue
        for one in map(Requirement, needed):
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert canonicalize_name(one.name) in found, f"{name} needs {one}: make lock"


def test_they_agree() -> None:
    """A server runs what it was tested with: no two pin different versions of one package."""
    tested = versions("dev")
    for lock in ASKED:
        for name, seen in versions(lock).items():
            assert seen <= tested.get(name, seen), (lock, name)
