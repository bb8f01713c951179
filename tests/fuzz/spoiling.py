"""What is wrong on purpose: in values, in the MessagePack around them, and in the bytes of a stream."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import msgpack

MAX_LENGTH: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Bytes:
    """MessagePack to be written as it is, right or wrong."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map with repeated keys."""

    pairs: Sequence[tuple[object, object]]


def deep(depth: int) -> str:
    return '{"a": ' + "[" * depth + "]" * depth + "}"


# Of each type what is at its edge, and beyond.
HOSTILE: Final[Sequence[object]] = (
    *(None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**31) - 1, -(2**63)),
    *(0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324, -1e11, 1e11, 253402300800.0, -62135596801.0),
    *("", "\0", "a\0b", "x" * 201, "x" * 70_000, "\x1b[31m", "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{GRINNING FACE}" * 60),
    *("'; DROP TABLE pulse.jobs; --", "%s%n%x", "${jndi:x}", "../../etc/passwd", "{0.__class__}", "NaN", "-1", "nil"),
    *("[]", "1", "null", "{", '{"a": NaN}', '{"a": 1e400}', '{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": 1, "a": 2}'),
    *(deep(300), deep(20_000), '{"n": ' + "9" * 5000 + "}", '{"a": "' + "x" * 5000 + '"}', "\N{BYTE ORDER MARK}{}"),
    *("infinity", "2024-02-30T00:00:00Z", "60 * * * *", "* * * * * * *", "0 0 30 2 *", "@reboot", "Mars/Olympus"),
    *("quadratic:-1", "list:" + ",".join("1" * 400), "exponential:1e999", "0199-zz", "MDE5OQ==", "1:2", ":"),
    *(b"", b"\0" * 15, b"\0" * 16, b"\0" * 17, b"\xff" * 16, b"x" * 5000),
    *([], {}, [[]], [{}], {"": None}, [None] * 50, ["x"] * 1000, {"a": {"b": {"c": {"d": {}}}}}, [1, [2, [3, [4]]]]),
    *({str(number): number for number in range(300)}, {"topic": "\0"}, {"\0": 1}, {"lease_s": -1.0}, {"id": b""}),
)
# No Python value stands for these.
RAW: Final[Sequence[Bytes]] = tuple(
    map(
        Bytes,
        (
            b"\xa2\xff\xfe",  # no UTF-8
            b"\xa3\xed\xa0\x80",  # a surrogate
            b"\xa2\xc0\x80",  # NUL, too long
            b"\xc1",  # never used
            b"\xd4\x05\x00",  # extension types: one of nobody's
            b"\xd6\xff\xff\xff\xff\xff",  # a time
            b"\xc7\x0c\xff" + b"\xff" * 12,  # a time that there is not
            b"\xc7\x05\xff" + b"\xff" * 5,
            b"\xc9\xff\xff\xff\xff\x01",  # 4 GiB of it
            b"\xdb\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xdd\x00\x00\x40\x00" + b"\xc0" * 0x4000,
            b"\xdd\x00\x00\x40\x00" + b"\x80" * 0x4000,
            b"\xde\x10\x00" + b"\xa0\xc0" * 0x1000,  # one key, 4096 times
            b"\x91" * 200 + b"\x90",
            b"\x91" * 20_000 + b"\x90",
            b"\x81\xa1a" * 200 + b"\x80",
            b"\x81\xa1a" * 20_000 + b"\x80",
            b"\x81\x80\x01",  # keys that are no keys
            b"\x81\x91\x80\x01",
            b"\x81\xc0\x01",
            b"\x81\xcb\x7f\xf8\0\0\0\0\0\0\x01",
            b"\xd3\x00\x00\x00\x00\x00\x00\x00\x01",  # 1, at length
            b"\xda\x00\x01a",
        ),
    )
)

Place: TypeAlias = tuple[MutableMapping[str, object] | MutableSequence[object], object]


def places(value: object, most: int = 200) -> Iterator[Place]:
    """Every place in *value*: its container, and the key or index."""
    queue = [value]
    while queue and most:
        container = queue.pop()
        items: Iterator[tuple[object, object]]
        if isinstance(container, dict):
            items = iter(container.items())
        elif isinstance(container, list):
            items = iter(enumerate(container))
        else:
            continue
        for key, inner in items:
            yield cast("Place", (container, key))
            most -= 1
            if isinstance(inner, dict | list):
                queue.append(inner)
            if not most:
                return


def spoil(rng: random.Random, body: dict[str, object]) -> object:
    """*body*, changed in place, with one or a few faults."""
    for _ in range(1 if rng.random() < 0.8 else 3):
        found = list(places(body))
        choice = rng.random()
        if not found or choice < 0.1:
            body[rng.choice(("later", "id", "topic", "jobs", "x" * 300, ""))] = bad(rng)
            continue
        container, key = rng.choice(found)
        if choice < 0.75:
            container[key] = bad(rng)  # type: ignore[call-overload,index]  # a key of this container
        elif choice < 0.9:
            del container[key]  # type: ignore[call-overload,arg-type]  # a key of this container
        elif isinstance(container, list):
            container.insert(rng.randint(0, len(container)), bad(rng))
        else:
            body["again"] = Pairs([("a", 1), ("a", bad(rng))])
    if body and rng.random() < 0.05:
        return Pairs([*body.items(), (rng.choice(list(body)), bad(rng))])
    return body


def bad(rng: random.Random) -> object:
    return rng.choice(RAW) if rng.random() < 0.1 else copy.deepcopy(rng.choice(HOSTILE))  # it may be spoiled itself


def pack(value: object) -> bytes:
    """*value* as MessagePack, also what msgpack itself would not write."""
    try:
        packed: bytes = msgpack.packb(value)
    except TypeError:
        return b"".join(_packed(value))
    return packed


def _packed(value: object) -> Iterator[bytes]:
    match value:
        case Bytes(raw):
            yield raw
        case Pairs(pairs):
            yield from _map(pairs)
        case dict():
            yield from _map(list(cast("Mapping[object, object]", value).items()))
        case list() | tuple():
            yield b"\xdd" + len(value).to_bytes(4, "big")
            for inner in cast("Sequence[object]", value):
                yield from _packed(inner)
        case _:
            yield msgpack.packb(value)


def _map(pairs: Sequence[tuple[object, object]]) -> Iterator[bytes]:
    yield b"\xdf" + len(pairs).to_bytes(4, "big")
    for key, inner in pairs:
        yield from _packed(key)
        yield from _packed(inner)


# The same for bytes, which need not be MessagePack any more afterwards.
_TELLING: Final = (
    b"\xc0\xc1\xc2\xc4\xc6\xc7\xc9\xca\xcb\xcf\xd3\xd9\xdb\xdc\xdd\xde\xdf\x80\x8f\x90\x9f\xa0\xbf\xff\x00"
)


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice(_TELLING)


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 8))


def _delete(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 8)]


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randint(1, 32)] * rng.randint(1, 4)


def _nest(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice((b"\x91", b"\x81\xa1a", b"\xdd\x00\x00\x00\x01")) * rng.choice((1, 100, 5000))


def _promise(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at : at + 1] = rng.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6")) + rng.choice(
        (b"\xff\xff\xff\xff", b"\x00\x80\x00\x00", b"\x00\x00\x00\xff", b"\x00\x00\x00\x00")
    )


MUTATIONS: Final[Sequence[Callable[[random.Random, bytearray], None]]] = (
    _flip, _set, _insert, _delete, _truncate, _repeat, _nest, _promise,
)  # fmt: skip


def mutated(rng: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if data:
            rng.choice(MUTATIONS)(rng, data)
    return bytes(data)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def lying(rng: random.Random, payload: bytes, limit: int) -> bytes:
    length = rng.choice((0, 1, limit, limit + 1, MAX_LENGTH, len(payload) + 1, max(0, len(payload) - 1), 2**31))
    return length.to_bytes(4, "big") + payload
