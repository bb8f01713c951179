"""``unique_by`` and ``group_by`` of a handler: keys of a job from its arguments, where the function is submitted."""

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


def by_owner(document: Document) -> str:
    return document.owner


@app.handler("index", unique_by=by_document, group_by=by_owner, topic="texts")
def index(ctx: pulse.Context, document: Document, language: str = "en", depth: int = 1) -> None: ...


@app.handler("maybe", unique_by=lambda key: key)
@app.handler("maybe grouped", group_by=lambda key: key)
def maybe(key: Any = None) -> None: ...


def sent(job: Any) -> dict[str, Any]:
    jobs: Any = requests.submit([job]).body["jobs"]
    return dict(jobs[0])


def keys(job: Any) -> tuple[str | None, str | None]:
    body = sent(job)
    return body.get("unique"), body.get("group_key")


def test_the_keys_are_made_from_what_the_handler_gets() -> None:
    """Converted as annotated, with defaults; however the function is submitted."""
    call = pulse.call(index, Document("ada", 41), depth=2)
    assert keys(call) == ("ada:42:en", "ada")
    given = {"name": index, "args": {"document": {"owner": "ada", "number": 41}, "language": "de"}}
    assert keys(given) == ("ada:42:de", "ada")
    assert (sent(call)["topic"], sent(call)["args"]) == (
        "texts", '{"document":{"owner":"ada","number":41},"depth":2}',
    )  # fmt: skip


def test_a_key_that_is_given_wins() -> None:
    body = sent({"name": index, "args": {"document": Document("a", 1)}, "unique": "mine", "unique_until": "start"})
    assert (body["unique"], body["unique_until"], body["group_key"]) == ("mine", "start", "a")
    assert keys({"name": pulse.call(index, Document("a", 1)), "group_key": "b"}) == ("a:2:en", "b")
    later = sent({"name": pulse.call(index, Document("a", 1)), "on_conflict": "replace"})
    assert (later["unique"], later["on_conflict"]) == ("a:2:en", "replace")


def test_none_is_no_key() -> None:
    for name in ("maybe", "maybe grouped"):
        assert app.handlers[name].keys({}) == {}
    assert keys({"name": "index", "args": {"document": {}}}) == (None, None)  # a name is no function


@pytest.mark.parametrize("key", ["", "x" * 501, 5, b"x"], ids=["empty", "long", "number", "bytes"])
def test_what_is_no_key(key: Any) -> None:
    handler = app.handlers["maybe"]
    with pytest.raises(BadRequestError) as refused:
        handler.keys({"key": key})
    assert str(refused.value) == (
        f"maybe: unique_by gives {key!r:.100}; text of 1 to 500 characters is allowed, or None"
    )
    assert [handler.keys({"key": one}) for one in ("x" * 500, "*")] == [{"unique": "x" * 500}, {"unique": "*"}]


@pytest.mark.parametrize("key", ["", "x" * 201, "*"], ids=["empty", "long", "star"])
def test_what_is_no_group(key: Any) -> None:
    handler = app.handlers["maybe grouped"]
    with pytest.raises(BadRequestError) as refused:
        handler.keys({"key": key})
    assert str(refused.value) == (
        f"maybe grouped: group_by gives {key!r:.100}; text of 1 to 200 characters, but not * alone, is allowed, or None"
    )
    assert handler.keys({"key": "x" * 200}) == {"group_key": "x" * 200}


async def _async(document: object) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("option", ["unique_by", "group_by"])
@pytest.mark.parametrize(("function", "said"), [
    ("doc", "must be a plain function of its arguments, not 'doc'"),
    (_async, "must be a plain function of its arguments, not <function _async"),
    (lambda other: other, "takes 'other'; parameters of the handler are allowed, by their names: document, "),
    (lambda ctx: ctx, "takes 'ctx'; "),
    (lambda document, /: document, "takes 'document'; "),
    (lambda *document: document, "takes 'document'; "),
], ids=["text", "async", "unknown", "context", "positional", "variable"])  # fmt: skip
def test_what_makes_no_key(option: str, function: Any, said: str) -> None:
    with pytest.raises(HandlerError) as refused:
        pulse.App().handler("index", **{option: function})(index)
    assert str(refused.value).startswith(f"handler 'index': {option} {said}")
