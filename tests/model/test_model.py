"""The formal model of the recovery protocol: it holds, and without any one of its guards it does not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest
from _pytest.mark import ParameterSet

from pulse.store.statements import STATEMENTS
from tests.model.spin import FOR_EVER, HERE, Variant, Verdict, missing, properties, verify
from tests.model.variants import BREAK, HOLD
from tests.support.checking.every import every
from tests.support.checking.markdown import DOCS, section, table

_ASKED: Final = re.compile(r"^#(?:ifdef|ifndef) (\w+)|defined\((\w+)\)", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAMED: Final = re.compile(r"\b([A-Za-z]\w+)\.(?!pml|sql)(\w+)\b|\b([a-z]+(?:_[a-z]+)+)\b(?!\.)")

PAGE: Final = (DOCS / "model.md").read_text("utf-8")
MODELS: Final = ("epoch", "fence", "joins", "ladder", "limits", "outage", "reconnect", "signals")
SOURCES: Final = {path.name: path.read_text("utf-8") for path in sorted(HERE.glob("*.pml"))}
PROMELA: Final = "\n".join(_COMMENT.sub("", source) for source in SOURCES.values())
DEFAULTS: Final = {"ONLY", "LIVENESS", "LEASE", "MAX_ATTEMPTS", "STEP", "JOBS"}  # not flags of variants
ROOT: Final = DOCS.parent
CODE: Final = {
    path: path.read_text("utf-8")
    for path in (ROOT / "schema.sql", *(ROOT / "actors").rglob("*.py"), *(ROOT / "pulse" / "store").rglob("*.py"))
}


class Verdicts:
    """Searches for what is asked for, each once, as many side by side as there are cores."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._found: dict[Variant, Future[Verdict]] = {}

    def want(self, variant: Variant) -> Future[Verdict]:
        if variant not in self._found:
            self._found[variant] = self._pool.submit(verify, variant)
        return self._found[variant]

    def of(self, variant: Variant) -> Verdict:
        return self.want(variant).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def verdicts(request: pytest.FixtureRequest) -> Iterator[Verdicts]:
    """Verdicts by Spin; those that the tests of this run need are begun at once."""
    absent = missing()
    if absent:
        pytest.skip(absent)
    found = Verdicts()
    for item in request.session.items:
        variant = (
            item.callspec.params.get("variant")
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else None
        )
        if isinstance(variant, Variant):
            found.want(variant)
    yield found
    found.close()


def _broken() -> Iterator[ParameterSet]:
    """The first variant that violates each property; the others where there is time for all (and in make model)."""
    seen = set[tuple[str, str]]()
    for one in BREAK:
        kept = (one.model, one.breaks) not in seen
        seen.add((one.model, one.breaks))
        yield pytest.param(one, marks=() if kept else pytest.mark.spare)


@pytest.mark.parametrize("variant", HOLD, ids=str)
@pytest.mark.rest
def test_holds(verdicts: Verdicts, variant: Variant) -> None:
    """The protocol keeps all its properties, over enough states."""
    verdict = verdicts.of(variant)
    assert verdict.broken == frozenset()
    assert verdict.is_complete
    assert verdict.states >= variant.floor


@pytest.mark.parametrize("variant", list(_broken()), ids=lambda one: f"{one} {one.breaks}")
@pytest.mark.rest
def test_breaks(verdicts: Verdicts, variant: Variant) -> None:
    """Without that guard, just that property is violated: the model can see what the guard is for."""
    assert verdicts.of(variant).broken == {variant.breaks}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.rest
def test_nothing_is_left_out(verdicts: Verdicts, model: str) -> None:
    """Every statement of a model runs in one of the searches in which it holds: none is dead."""
    searched = [verdicts.of(one).unreached for one in HOLD if one.model == model and not one.live]
    assert frozenset.intersection(*searched) == frozenset()


def test_every_property_can_be_violated() -> None:
    def check(model: str) -> None:
        assert {one.breaks for one in BREAK if one.model == model and not one.live} == properties(model)

    every(MODELS, check)


def test_every_flag_is_tried() -> None:
    """Each flag of the models is set by some variant, and each flag of a variant exists."""
    asked = {name for source in SOURCES.values() for pair in _ASKED.findall(source) for name in pair if name}
    assert asked - DEFAULTS == {flag.partition("=")[0] for one in (*HOLD, *BREAK) for flag in one.flags}


def test_what_it_stands_for_exists() -> None:
    """The functions, attributes and statements that the comments of a model name are there."""
    every(SOURCES, _stands_for_what_exists)


def _stands_for_what_exists(name: str) -> None:
    unknown: list[str] = []
    for holder, member, plain in _NAMED.findall(" ".join(_COMMENT.findall(SOURCES[name]))):
        if plain:
            known = plain in STATEMENTS or any(re.search(rf"\b{plain}\b", text) for text in (*CODE.values(), PROMELA))
        else:
            homes = [
                text
                for path, text in CODE.items()
                if holder in {path.stem, "pulse"} or re.search(rf"^class {holder}\b", text, re.MULTILINE)
            ]
            known = any(re.search(rf"\b{member}\b", text) for text in homes)
        if not known:
            unknown.append(plain or f"{holder}.{member}")
    assert unknown == []


def test_page_tells_of_each_variant() -> None:
    """docs/model.md names the guards that are taken out, and what breaks."""
    rows = table(section(PAGE, "What breaks without"))
    told = {(row["model"], flag, row["breaks"]) for row in rows for flag in row["variant"].split(", ")}
    guards = {(one.model, one.flags[-1], one.breaks.replace(FOR_EVER, "(liveness)")) for one in BREAK}
    assert told == guards  # the last flag breaks it, those before it prepare that
