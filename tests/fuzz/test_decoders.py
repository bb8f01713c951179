"""Hypothesis on all decoders: any bytes are a valid frame or one error, and cost little."""

from __future__ import annotations

import base64
import copy
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from pulse.errors import ProtocolError
from pulse.protocol import ALLOWED, ANSWERS, SUPERVISOR_KINDS, Frame, FrameReader, Hello, Role, decode_body, encode
from tests.fuzz import properties
from tests.fuzz.frames import OF_WORKERS, Frames, hello, is_harmless
from tests.fuzz.properties import check, check_cuts, delivered
from tests.fuzz.shapes import OWN, Maker
from tests.fuzz.spoiling import RAW, framed, lying, mutated, pack, spoil
from tests.support.checking.cost import cpu_time

KINDS: Final[Mapping[str, type[Struct]]] = {
    **{f"{role} {name}": kind for role, kinds in ALLOWED.items() for name, kind in kinds.items()},
    **{f"supervisor {name}": kind for name, kind in SUPERVISOR_KINDS.items()},
    **{f"server {name}": kind for name, kind in ANSWERS.items()},
    "anybody hello": Hello,
}
kinds = st.sampled_from(sorted(KINDS))
rngs = st.randoms(use_true_random=False)
parties = st.sampled_from(properties.PARTIES)
MIB: Final = 1024 * 1024
CORPUS: Final = Path(__file__).with_name("corpus.txt")  # what a fuzzer guided by coverage had found, in base64
BUS: Final[Mapping[str, Mapping[str, object]]] = {
    "hello": {"name": "a", "pid": 0}, "ready": {}, "pong": {"turn_age_s": 0.5},
    "hint": {"to": "b", "event": "work", "data": {"n": 1}}, "status": {}, "failed": {"message": "no"},
    "ok": {"database": {"ok": True}}, "error": {"code": "internal", "message": "no"},
}  # fmt: skip


def name_of(kind: str) -> str:
    return kind.partition(" ")[2]


def payload_of(rng: random.Random, kind: str) -> bytes:
    return pack([name_of(kind), 7, Maker(rng).body(KINDS[kind])])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_round_trip(kind: str) -> None:
    """A body of every kind and role is accepted, and comes out as it went in."""
    for seed in range(30):
        (frame,) = FrameReader().feed(framed(payload_of(random.Random(f"{kind} {seed}"), kind)))
        body = decode_body(KINDS[kind], frame)
        (again,) = FrameReader().feed(framed(msgspec.msgpack.encode((name_of(kind), 7, body))))
        assert decode_body(KINDS[kind], again) == body


@given(rngs, kinds, st.lists(st.integers(0, 4000), max_size=6))
def test_every_kind_cut_anywhere(rng: random.Random, kind: str, cuts: list[int]) -> None:
    """Frames of every kind, the last of them perhaps broken, come out alike however the stream is cut."""
    data = framed(payload_of(rng, kind)) + framed(payload_of(rng, kind))
    last = payload_of(rng, kind)
    data += rng.choice((framed(last), framed(mutated(rng, last)), lying(rng, last, properties.LIMIT)))
    assert len(check_cuts(data, [cut % (len(data) + 1) for cut in cuts])) >= 2


@given(rngs, kinds)
def test_cut_at_every_offset_before_a_break(rng: random.Random, kind: str) -> None:
    """Whole frames before the broken one are delivered, and nothing behind it."""
    good, bad = framed(payload_of(rng, kind)), framed(b"\xc1")
    data = good + bad + good
    whole = delivered(good, ())[0]
    for cut in range(0, len(data) + 1, 1 + len(data) // 500):
        assert delivered(data, (cut,)) == (whole, "bad_request")


@given(parties, rngs, kinds)
def test_mutated_bytes_are_frames_or_one_error(
    party: Callable[[bytes], Iterator[str]], rng: random.Random, kind: str
) -> None:
    payload = payload_of(rng, kind)
    data = framed(payload) + framed(mutated(rng, payload)) + lying(rng, payload, properties.LIMIT)
    assert all(isinstance(found, str) for found in check(bytes([properties.PARTIES.index(party)]) + data))


@given(parties, rngs, kinds)
def test_spoiled_values_are_taken_or_refused(
    party: Callable[[bytes], Iterator[str]], rng: random.Random, kind: str
) -> None:
    """Invalid values, repeated keys, extension types, NaN, broken UTF-8, deep nesting."""
    body = spoil(rng, Maker(rng).body(KINDS[kind]))
    data = bytes([properties.PARTIES.index(party)]) + framed(pack([name_of(kind), 7, body]))
    assert all(isinstance(found, str) for found in check(data))


@given(rngs, st.sampled_from(sorted(BUS)))
def test_the_bus_bears_everything(rng: random.Random, kind: str) -> None:
    """A wrong message of an actor is reported or dropped; the supervisor lives."""
    body = copy.deepcopy(dict(BUS[kind]))  # it is spoiled, with all that is in it
    payload = pack([kind, rng.choice((None, 1, 0)), body if rng.random() < 0.3 else spoil(rng, body)])
    data = framed(payload) + (framed(mutated(rng, payload)) if rng.random() < 0.5 else b"")
    assert all(isinstance(found, str) for found in properties.bus(data))


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw.raw[:8].hex())
def test_what_no_value_stands_for(raw: object) -> None:
    """In an unknown key, a known one, as the body, and as the kind: at most an error, however the stream is cut."""
    for parts in (
        ["ping", 1, {"later": raw}],
        ["submit", 1, {"jobs": raw}],
        ["topics.set", 1, {"topic": "t", "policy": {"a": raw}}],
        ["assign", None, {"jobs": [[b"x" * 16, 1, "n", "t", "{}", None, 1.0, {"a": raw}]]}],
        ["hint", None, {"to": "b", "event": "e", "data": raw}],
        ["ping", 1, raw],
        ["ping", raw, {}],
        [raw, 1, {}],
        [raw],
    ):
        for party in range(len(properties.PARTIES)):
            assert all(isinstance(found, str) for found in check(bytes([party]) + framed(pack(parts))))


def test_the_last_of_two_keys_counts() -> None:
    frame = Frame("jobs.list", 1, msgspec.Raw(b"\x82\xa5limit\x05\xa5limit\x06"))
    assert decode_body(ALLOWED[Role.CLIENT]["jobs.list"], frame).limit == 6  # type: ignore[attr-defined]  # JobsList


@given(st.binary(max_size=300))
@example(b"\x00")
def test_any_bytes_on_any_side(data: bytes) -> None:
    assert all(isinstance(found, str) for found in check(data))


def test_the_corpus() -> None:
    inputs = [base64.b64decode(line) for line in CORPUS.read_text("ascii").split()]
    for one in inputs:
        assert all(isinstance(found, str) for found in check(one)), one.hex()
    assert {one[0] % len(properties.PARTIES) for one in inputs} == set(range(len(properties.PARTIES)))


def hardest() -> Iterator[tuple[str, bytes]]:
    """For each kind the frames of a mebibyte that are the most work: very many of the smallest valid things."""
    ref = b"\x92\xc4\x10" + b"x" * 16 + b"\x01"
    fillings = {
        "submit jobs": b"\x81\xa4name\xa1n", "jobs.list status": b"\xa0",
        "report results": b"\x93" + ref[1:] + b"\xa2ok", "heartbeat jobs": ref, "started jobs": ref,
        "checkpoint jobs": ref, "hello topics": b"\xa1t", "hello names": b"\xa1n", "hello running": ref,
        "schedules.declare schedules": b"\x82\xa4name\xa1n\xa3key\xa1k", "jobs.cancel ids": b"\xc4\x10" + b"x" * 16,
        "topics.unset options": b"\xa0",
    }  # fmt: skip
    for what, filling in fillings.items():
        kind, key = what.split()
        more = {
            "hello": b"\xa8protocol\x01\xa4role\xa6client",
            "topics.unset": b"\xa5topic\xa1t",
            "schedules.declare": b"\xa2by\xa1b",
        }
        before = more.get(kind, b"")
        keys = {b"": 1}.get(before, 3 if kind == "hello" else 2)
        count = (MIB - 200) // len(filling)
        body = bytes([0x80 + keys]) + before + msgpack.packb(key) + b"\xdd" + struct.pack(">I", count) + filling * count
        yield what, framed(b"\x93" + msgpack.packb(kind) + b"\x01" + body)
    for kind, key, value in (("hello", "handlers", b"\x80"), ("topics.set", "policy", b"\xc0")):
        count = (MIB - 200) // 5
        entries = b"".join(b"\xa3" + bytes((i & 127, i >> 7 & 127, i >> 14)) + value for i in range(count))
        before = {"hello": b"\xa8protocol\x01\xa4role\xa6client", "topics.set": b"\xa5topic\xa1t"}[kind]
        keys = 3 if kind == "hello" else 2
        body = bytes([0x80 + keys]) + before + msgpack.packb(key) + b"\xdf" + struct.pack(">I", count) + entries
        yield f"{kind} {key}", framed(b"\x93" + msgpack.packb(kind) + b"\x01" + body)


@pytest.mark.rest
def test_memory_and_time_for_each_byte() -> None:
    """The most expensive frames of each kind need few bytes for each of their own, and little time."""
    for what, data in hardest():
        reader = FrameReader()
        tracemalloc.start()
        try:
            with cpu_time(at_most_s=1.0):
                (frame,) = reader.feed(data)
                for kind in properties.OF_PEERS[frame.kind]:
                    properties.check_body(kind, frame)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 12 * len(data), f"{what}: {peak_bytes / len(data):.1f} for each"


def test_a_message_is_short_however_long_the_value() -> None:
    """Else an error would be a way to have a megabyte sent back, or logged."""
    for kind, body in (
        ("hello", {"protocol": 1, "role": "x" * MIB}),
        ("logs", {"level": "x" * MIB}),
        ("report", {"results": [[b"x" * 16, 1, "x" * MIB]]}),
        ("topics.set", {"topic": "t", "policy": {"x" * MIB: []}}),
    ):
        (frame,) = FrameReader().feed(encode(kind, 1, body))
        for struct_ in properties.OF_PEERS[kind]:
            with pytest.raises(ProtocolError) as refused:
                decode_body(struct_, frame)
            assert len(refused.value.message) < 600


@given(rngs)
def test_no_frame_of_the_fuzzer_reaches_beyond_its_own(rng: random.Random) -> None:
    """The live fuzzer pauses, sets and ends only what is its own."""
    frames = Frames(rng, OF_WORKERS, [])
    assert all(is_harmless(frame.data) for frame in (frames.next(), frames.broken()))
    assert is_harmless(encode("hello", 0, hello(rng, role="worker", worker="w")))


@pytest.mark.parametrize(("kind", "body", "harmless"), [
    ("dispatch.pause", {}, False),
    ("dispatch.pause", {"topic": "healthy"}, False),
    ("dispatch.pause", {"topic": f"{OWN}1"}, True),
    ("dispatch.pause", {"topic": 1}, True),
    ("topics.set", {"topic": f"{OWN}1", "policy": {"retention_s": 1}}, False),
    ("topics.set", {"topic": f"{OWN}1", "policy": {"retention_s": 1e9}}, True),
    ("topics.unset", {"topic": ""}, False),
    ("drain", {}, False),
    ("drain", {"all": 7}, True),
    ("actors.restart", {"name": "pause"}, False),
    ("actors.restart", {"name": "nobody"}, True),
    ("ping", {}, True),
])  # fmt: skip
def test_what_is_harmless(kind: str, body: dict[str, object], harmless: bool) -> None:
    assert is_harmless(encode("ping", 1, {}) + encode(kind, 1, body) + b"\0\0\0\0") is harmless
