"""``unique_by`` of a handler: the unique key of a job from its arguments, where the function itself is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

import pulse
from pulse.client import requests
from pulse.errors import BadRequestError, HandlerError

app: Final = pulse.App()


@dataclass
class Document:
    owner: str
    number: int


def by_document(document: Document, language: str) -> str:
    return f"{document.owner}:{document.number + 1}:{language}"


@app.handler("index", unique_by=by_document, topic="texts")
def index(ctx: pulse.Context, document: Document, language: str = "en", depth: int = 1) -> None: ...


@app.handler("maybe", unique_by=lambda key: key)
def maybe(key: Any = None) -> None: ...


def sent(job: Any) -> dict[str, Any]:
    jobs: Any = requests.submit([job]).body["jobs"]
    return dict(jobs[0])


def test_the_key_is_made_from_what_the_handler_gets() -> None:
    """Converted as annotated, with defaults; however the function is submitted."""
    call = pulse.call(index, Document("ada", 41), depth=2)
    assert sent(call)["unique"] == "ada:42:en"
    given = {"name": index, "args": {"document": {"owner": "ada", "number": 41}, "language": "de"}}
    assert sent(given)["unique"] == "ada:42:de"
    assert (sent(call)["topic"], sent(call)["args"]) == (
        "texts", '{"document":{"owner":"ada","number":41},"depth":2}',
    )  # fmt: skip


def test_a_key_that_is_given_wins() -> None:
    body = sent({"name": index, "args": {"document": Document("a", 1)}, "unique": "mine", "unique_until": "start"})
    assert (body["unique"], body["unique_until"]) == ("mine", "start")
    later = sent({"name": pulse.call(index, Document("a", 1)), "on_conflict": "replace"})
    assert (later["unique"], later["on_conflict"]) == ("a:2:en", "replace")


def test_none_is_no_key() -> None:
    assert "unique" not in sent(pulse.call(maybe))
    assert "unique" not in sent({"name": "index", "args": {"document": {}}})  # a name is no function


@pytest.mark.parametrize("key", ["", "x" * 501, 5, b"x"], ids=["empty", "long", "number", "bytes"])
def test_what_is_no_key(key: Any) -> None:
    handler = app.handlers["maybe"]
    with pytest.raises(BadRequestError, match=r"^maybe: unique_by gives .*; text of 1 to 500 characters is allowed"):
        handler.unique_key({"key": key})
    assert handler.unique_key({"key": "x" * 500}) == "x" * 500


async def _async(document: object) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(("unique_by", "said"), [
    ("doc", "must be a plain function of its arguments, not 'doc'"),
    (_async, "must be a plain function of its arguments, not <function _async"),
    (lambda other: other, "takes 'other'; parameters of the handler are allowed, by their names: document, "),
    (lambda ctx: ctx, "takes 'ctx'; "),
    (lambda document, /: document, "takes 'document'; "),
    (lambda *document: document, "takes 'document'; "),
], ids=["text", "async", "unknown", "context", "positional", "variable"])  # fmt: skip
def test_what_is_no_unique_by(unique_by: Any, said: str) -> None:
    with pytest.raises(HandlerError) as refused:
        pulse.App().handler("index", unique_by=unique_by)(index)
    assert str(refused.value).startswith(f"handler 'index': unique_by {said}")
