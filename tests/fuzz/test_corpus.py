"""What atheris has found interesting is looked at again: each input of the corpus, by the same properties."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.properties import PARTIES, check

LARGEST_BYTES = 60_000


def test_every_input_is_borne() -> None:
    """No input of the corpus breaks a property, and all three parties are in it."""
    inputs = corpus.load()
    for one in inputs:
        assert all(isinstance(found, str) for found in check(one)), one.hex()
    assert {one[0] % len(PARTIES) for one in inputs} == set(range(len(PARTIES)))


def test_the_corpus_is_small() -> None:
    """It stays a file that can be cloned and read."""
    assert corpus.FILE.stat().st_size < LARGEST_BYTES


def test_what_adds_nothing_is_not_kept(tmp_path: Path) -> None:
    """Of inputs with which the same is found the shortest is kept, and what is saved is what was chosen."""
    kept = corpus.chosen(
        [b"long 1", b"b2", b"a1"], lambda data: [f"error {data[-1:].decode()} at 'x'", data[:1].decode()]
    )
    assert list(kept) == [b"a1", b"b2", b"long 1"]
    assert list(corpus.chosen([b"long 1", b"a1"], lambda _data: ["error 7 at 'y'"])) == [b"a1"]
    corpus.save(kept, tmp_path / "corpus")
    assert sorted(corpus.load(tmp_path / "corpus")) == sorted(kept)
