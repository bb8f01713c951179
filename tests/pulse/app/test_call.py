"""Calls of handlers: bound, checked and converted where they are written, and read again by the worker."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import pulse
from pulse.app.call import resolve_call
from pulse.app.parameters import ArgumentError, Parameters
from pulse.errors import BadRequestError, HandlerError


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Tree:
    name: str
    below: list[Tree] = field(default_factory=list["Tree"])


@dataclass
class Item:
    price: Decimal
    tags: set[str] = field(default_factory=set[str])


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


class User(pydantic.BaseModel):
    name: str
    born: date


class Foreign:
    """Nobody knows how to convert it."""


app = pulse.App()


@app.handler("resize")
async def resize(ctx: pulse.Context, path: str, width: int = 64, *, size: Size = Size.SMALL) -> None: ...


@app.handler("order")
def order(items: list[Item], place: Point | None = None, to: Address | None = None, other: Any = None) -> None: ...


@app.handler("loose")
def loose(one, two=2, **others: int) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


@app.handler("grow")
def grow(tree: Tree) -> None: ...


@app.handler("greet")
def greet(users: list[User]) -> None: ...


@app.handler("kinds")
def kinds(
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC),
    day: date | None = None,
    id: UUID | None = None,
    path: Path = Path(),
    data: bytes = b"",
    mode: Literal["fast", "slow"] = "fast",
    most: Annotated[int, msgspec.Meta(ge=1)] = 1,
    none: int = None,  # type: ignore[assignment]  # noqa: RUF013 - people write this
    foreign: Foreign | None = None,
    unknown: "Nowhere" = 1,  # type: ignore[name-defined]  # noqa: F821, UP037
) -> None: ...


def full() -> None: ...


def bare() -> None: ...


def read(call: pulse.Call[Any]) -> dict[str, Any]:
    return app.handlers[call.name].parameters.decoded(json.loads(call.args))


made: Any = pulse.call  # without types, to make mistakes
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("call", "sent", "received"), [
    (lambda: pulse.call(resize, "a.png", width=3), {"path": "a.png", "width": 3}, {}),
    (lambda: pulse.call(resize, path="a", size=Size.LARGE), {"path": "a", "size": "l"}, {"size": Size.LARGE}),
    (lambda: pulse.call(order, [Item(Decimal("1.50"), {"a"})]), {"items": [{"price": "1.50", "tags": ["a"]}]},
     {"items": [Item(Decimal("1.50"), {"a"})]}),
    (lambda: pulse.call(order, [], Point(1), {"street": "x"}, other=[1, None]),
     {"items": [], "place": {"x": 1, "y": 0}, "to": {"street": "x"}, "other": [1, None]}, {"place": Point(1)}),
    (lambda: pulse.call(grow, Tree("a", [Tree("b")])),
     {"tree": {"name": "a", "below": [{"name": "b", "below": []}]}}, {"tree": Tree("a", [Tree("b")])}),
    (lambda: pulse.call(loose, 1, three=3), {"one": 1, "three": 3}, {}),
    (lambda: pulse.call(kinds, MOMENT, date(2026, 1, 2), UUID(int=1)),
     {"at": "2026-01-01T00:00:00Z", "day": "2026-01-02", "id": str(UUID(int=1))},
     {"at": MOMENT, "day": date(2026, 1, 2), "id": UUID(int=1)}),
    (lambda: pulse.call(kinds, path=Path("a"), data=b"\xff", mode="slow", most=2),
     {"path": "a", "data": "/w==", "mode": "slow", "most": 2}, {"path": Path("a"), "data": b"\xff"}),
    (lambda: made(kinds, none=None, foreign=None, unknown=1), {"none": None, "foreign": None, "unknown": 1}, {}),
])  # fmt: skip
def test_what_is_called_arrives(
    call: Callable[[], pulse.Call[Any]], sent: dict[str, Any], received: dict[str, Any]
) -> None:
    """*received*: what differs from what was sent."""
    found = call()
    assert json.loads(found.args) == sent
    assert read(found) == sent | received


WRONG: Any = object()
CONTEXT = pulse.Context(job_id=UUID(int=1), attempt=1, name="n", topic="t")


@pytest.mark.parametrize(("call", "message"), [
    (lambda: made(resize), "resize: argument 'path' is missing; it takes path, width, size"),
    (lambda: made(resize, "a", "b"), "resize: width is 'b'; allowed is a whole number"),
    (lambda: made(resize, "a", widht=3), "resize: there is no parameter 'widht'; did you mean 'width'?"),
    (lambda: made(resize, "a", zzz=3), "resize: there is no parameter 'zzz'; it takes path, width, size"),
    (lambda: made(resize, "a", path="b"), "resize: argument 'path' is given twice"),
    (lambda: made(resize, CONTEXT, "a"), "resize: a call leaves the context out; the worker gives its own"),
    (lambda: made(resize, "a", 1, Size.LARGE), "resize: takes 2 arguments by position, not 3"),
    (lambda: made(resize, "a", size="m"), "resize: size is 'm'; allowed are s, l"),
    (lambda: made(order, [{"price": "1"}, {"price": "x"}]),
     "order: items[1].price is 'x'; allowed is a decimal number"),
    (lambda: made(order, [], other=WRONG), "order: args are not JSON: 'other': Object of type object"),
    (lambda: made(order, [WRONG]), "order: items has no form in JSON (objects of type object have none)"),
    (lambda: made(kinds, most=0), "kinds: most is 0; allowed is a whole number, 1 or more"),
    (lambda: made(kinds, mode="medium"), "kinds: mode is 'medium'; allowed are fast, slow"),
    (lambda: made(kinds, path=3), "kinds: path is 3; allowed is a path"),
    (lambda: resolve_call(resize, {"path": "a", "width": "9"}), "resize: width is '9'; allowed is a whole number"),
    (lambda: resolve_call(resize, [1]), "args must be an object of keyword arguments, not list"),
    (lambda: resolve_call(resize, None), "resize: argument 'path' is missing; it takes path, width, size"),
    (lambda: resolve_call(made(resize, "a"), {"width": 3}), "resize: args are given beside those of the call"),
])  # fmt: skip
def test_a_wrong_call_fails_where_it_is_written(call: Callable[[], object], message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_call_has_the_options_that_its_handler_declares() -> None:
    """And no others: what a worker does with a job, the worker knows."""
    own = pulse.App()
    app.handler("full", topic="images", max_attempts=2, timeout_s=9, max_crashes=1, stall_s=3, backoff="fixed:1")(full)
    own.handler("bare")(bare)
    assert pulse.call(full).options == {"topic": "images", "max_attempts": 2, "timeout_s": 9.0}
    assert pulse.call(bare).options == {}
    assert len({pulse.call(full), pulse.call(full)}) == 1


def test_only_a_handler_is_called() -> None:
    for one in (read, "resize"):
        with pytest.raises(HandlerError, match=r"not a handler|not its name"):
            made(one)


def test_a_worker_names_the_place_and_not_the_value() -> None:
    parameters = app.handlers["order"].parameters
    for args, message in (
        ({"items": [{"price": "secret"}]}, "items[0].price is wrong; allowed is a decimal number"),
        ({}, "argument 'items' is missing; it takes items, place, to, other"),
        ({"items": [], "secret": 1}, "there is no parameter 'secret'; it takes items, place, to, other"),
    ):
        with pytest.raises(ArgumentError) as caught:
            parameters.decoded(args)
        assert str(caught.value) == message


def test_a_worker_checks_args_that_need_no_conversion() -> None:
    def plain(number: int, text: str = "x") -> None:
        """Types that JSON has."""

    parameters = _parameters(plain)
    assert parameters.decoded({"text": "a", "number": 1}) == {"text": "a", "number": 1}
    assert parameters.decoded({"number": 1}) == {"number": 1}
    good = {"text": "a", "number": 1}
    for args in ({**good, "number": True}, {**good, "number": "1"}, {**good, "text": 2}, {**good, "more": 1}, {}):
        with pytest.raises(ArgumentError):
            parameters.decoded(dict(args))


def test_a_worker_takes_metadata_that_cannot_be_hashed() -> None:
    def measured(number: Annotated[int, ["seconds"]]) -> None:
        """With a note of its own."""

    assert _parameters(measured).decoded({"number": 1}) == {"number": 1}


def _parameters(function: Callable[..., None]) -> Parameters:
    its = pulse.App()
    its.handler("it")(function)
    return its.handlers["it"].parameters


def test_models_of_pydantic() -> None:
    found = pulse.call(greet, [User(name="a", born=date(2000, 1, 2))])
    assert json.loads(found.args) == {"users": [{"name": "a", "born": "2000-01-02"}]}
    parameters = app.handlers["greet"].parameters
    assert read(found) == {"users": [User(name="a", born=date(2000, 1, 2))]}
    with pytest.raises(ArgumentError, match=r"^users\[0\]: born: Field required$"):
        parameters.decoded({"users": [{"name": "secret"}]})


def test_results_by_type() -> None:
    job = pulse.Job(id=UUID(int=1), name="price", topic="t", status=pulse.Status.COMPLETED, result={"price": "1.5"})
    assert job.result_as(Item) == Item(Decimal("1.5"))
    with pytest.raises(pulse.ResultError, match=r"^job 0{8}.* \(price\): result\.price is wrong; allowed is a w"):
        job.result_as(msgspec.defstruct("Price", [("price", int)]))
    dead = pulse.Job(id=UUID(int=1), name="x", topic="t", status=pulse.Status.DEAD_LETTERED, last_error="boom\nmore")
    with pytest.raises(pulse.ResultError, match=r"has no result: it is DEAD_LETTERED: boom$"):
        dead.result_as(Item)
