"""The wire: frames arrive as sent, however they are cut; anything else is one error, early and cheap."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse import protocol
from pulse.errors import ProtocolError
from pulse.protocol import (
    ALLOWED,
    BrokenStreamError,
    Frame,
    FrameReader,
    Role,
    check_result,
    decode_any,
    decode_body,
    encode,
    encode_error,
)

ID = uuid.UUID(int=7).bytes
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
bodies = st.dictionaries(st.text(max_size=8), values, max_size=5)
requests = st.none() | st.integers(0, 2**63 - 1)


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def only(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


def packed(*parts: Any) -> bytes:
    return framed(msgpack.packb(list(parts)))


@given(st.text(max_size=64), requests, bodies)
def test_what_is_sent_arrives(kind: str, request: int | None, body: dict[str, object]) -> None:
    frame = only(encode(kind, request, body))
    assert (frame.kind, frame.request) == (kind, request)
    assert decode_any(frame) == body


class Text(str):  # Django's safe text is one, NumPy's float64 is one of float
    __slots__ = ()


class Number(float):
    __slots__ = ()


@given(st.text(max_size=64), requests, bodies)
def test_both_libraries_pack_the_same(kind: str, request: int | None, body: dict[str, object]) -> None:
    """Subclasses of texts and numbers, too, which one of them refuses."""
    assert encode(kind, request, body) == packed(kind, request, body)
    assert encode(kind, request, {"s": Text("a"), "n": Number(1.5), **body}) == packed(
        kind, request, {"s": "a", "n": 1.5, **body}
    )


@pytest.mark.rest
@given(st.lists(st.tuples(requests, bodies), min_size=1, max_size=4))
def test_cut_at_every_place(sent: list[tuple[int | None, dict[str, object]]]) -> None:
    data = b"".join(encode("kind", request, body) for request, body in sent)
    for cut in range(len(data) + 1):
        reader = FrameReader()
        frames = reader.feed(data[:cut]) + reader.feed(data[cut:])
        assert [(frame.request, decode_any(frame)) for frame in frames] == sent
        assert reader.buffered_bytes == 0


@pytest.mark.parametrize(("data", "code"), [
    (struct.pack(">I", 0), "bad_request"), (struct.pack(">I", 2**32 - 1), "too_large"),
    (struct.pack(">I", protocol.MAX_FRAME_BYTES + 1), "too_large"), (framed(b"\xc1"), "bad_request"),
    (framed(b"\x80"), "bad_request"), (packed("ping", 1), "bad_request"), (packed(1, 1, {}), "bad_request"),
    (packed("x" * 65, 1, {}), "bad_request"), (packed("ping", -1, {}), "bad_request"),
    (packed("ping", 2**63, {}), "bad_request"), (packed("ping", "1", {}), "bad_request"),
    (packed("ping", 1.0, {}), "bad_request"), (packed("ping", 1, []), "bad_request"),
    (packed("ping", 1, None), "bad_request"), (packed("ping", 1, "{}"), "bad_request"),
    (framed(msgpack.packb(["ping", 1, {}]) + b"\x00"), "bad_request"),
    (framed(msgpack.packb(["ping", 1, {"a": 1}])[:-1]), "bad_request"),
    (framed(b"\x93\xa1\xff\x01\x80"), "bad_request"), (framed(b"\x93\xa1k\x01\xdf\xff\xff\xff\xff"), "bad_request"),
    (framed(b"\xdd\xff\xff\xff\xff"), "bad_request"),
    (framed(b"\x93\xa1k\x01" + b"\x81\xa1a" * 100_000 + b"\x80"), "bad_request"),
    (framed(b"\x93\xa1k\x01" + b"\x91" * 100_000 + b"\x80"), "bad_request"),
])  # fmt: skip
def test_a_broken_frame_is_one_error(data: bytes, code: str) -> None:
    reader = FrameReader()
    good = encode("ping", 1, {})
    with pytest.raises(BrokenStreamError) as caught:
        reader.feed(good + data)
    assert caught.value.code == code
    assert caught.value.request is None
    assert [frame.kind for frame in caught.value.frames] == ["ping"]
    with pytest.raises(ProtocolError, match="the stream is broken already"):
        reader.feed(good)


def test_an_empty_frame_is_called_so() -> None:
    with pytest.raises(BrokenStreamError, match=r"^a frame of length 0; the smallest has 1 byte$"):
        FrameReader().feed(struct.pack(">I", 0))


def test_the_limit_comes_before_the_memory() -> None:
    reader = FrameReader(max_frame_bytes=100)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            reader.feed(struct.pack(">I", 101))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert caught.value.code == "too_large"
    assert "101 bytes" in caught.value.message
    assert FrameReader(max_frame_bytes=100).feed(framed(msgpack.packb(["k", 1, {"a": "x" * 91}]))[:104]) != []


def test_how_long_the_frame_will_be_that_has_begun() -> None:
    reader, data = FrameReader(), encode("ping", 1, {})
    told = []
    for at in range(len(data)):
        reader.feed(data[at : at + 1])
        told.append(reader.begun_bytes)
    assert told == [0] * 3 + [len(data)] * (len(data) - 4) + [0]


def _array(filling: bytes) -> bytes:
    return b"\x93\xa4ping\x01\x81\xa1x\xdd" + struct.pack(">I", len(filling)) + filling


def _keys(count: int) -> bytes:
    keys = b"".join(b"\xa3" + bytes((i & 127, i >> 7 & 127, i >> 14 & 127)) + b"\xc0" for i in range(count))
    return b"\x93\xa4ping\x01\xdf" + struct.pack(">I", count) + keys


@pytest.mark.parametrize(
    "make", [lambda: _array(b"\x80" * 10**6), lambda: _array(b"\x90" * 10**6), lambda: _keys(500_000)],
    ids=["maps", "arrays", "keys"],
)  # fmt: skip
def test_what_is_unknown_costs_little(make: Callable[[], bytes]) -> None:
    """Empty maps under an unknown key, and very many such keys, are skipped: no object is made for each."""
    payload = make()
    tracemalloc.start()
    try:
        decode_body(protocol.NoBody, only(framed(payload)))
        assert tracemalloc.get_traced_memory()[1] < 6 * len(payload)
    finally:
        tracemalloc.stop()


def test_what_is_unknown_is_ignored() -> None:
    """Unknown keys and additional elements change nothing: so the protocol can grow."""
    frame = only(
        encode(
            "assign",
            None,
            {"jobs": [[ID, 1, "n", "t", "{}", None, 30.0, {"later": 1}, "and", "more"]], "later": {"a": 1}},
        )
    )
    (job,) = decode_body(protocol.Assign, frame).jobs
    assert (job.id, job.attempt, job.name, job.timeout_s, job.lease_s) == (ID, 1, "n", None, 30.0)
    beat = decode_body(protocol.Heartbeat, only(packed("heartbeat", 1, {"jobs": [[ID, 2]]}, "later"))).jobs
    assert beat == [protocol.Beat(ID, 2)]


@pytest.mark.parametrize(("kind", "body"), [
    ("report", {}), ("report", {"results": [[ID, 0, "ok", None]]}), ("report", {"results": [[ID, 1, "done", None]]}),
    ("report", {"results": [[ID[:15], 1, "ok", None]]}), ("report", {"results": [["x" * 16, 1, "ok", None]]}),
    ("started", {"jobs": [[ID]]}), ("started", {"jobs": [[ID, 2**31]]}), ("heartbeat", {}),
    ("capacity", {"capacity": -1}), ("submit", {"jobs": []}), ("submit", {"jobs": [{"name": ""}]}),
    ("submit", {"jobs": [{"name": "n", "priority": 101}]}),
    ("submit", {"jobs": [{"name": "n", "delay_s": float("nan")}]}),
    ("submit", {"jobs": [{"name": "n", "run_at": float("inf")}]}),
    ("submit", {"jobs": [{"name": "n", "timeout_s": 0}]}), ("submit", {"jobs": [{"name": "n", "max_attempts": True}]}),
    ("jobs.list", {"limit": 1001}), ("jobs.get", {}), ("jobs.get", {"id": str(uuid.UUID(int=7))}),
    ("jobs.cancel", {"ids": []}),
])  # fmt: skip
def test_a_body_that_does_not_fit(kind: str, body: dict[str, object]) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_body(ALLOWED[Role.WORKER][kind], only(encode(kind, 9, body)))
    assert (caught.value.code, caught.value.request) == ("bad_request", 9)
    assert caught.value.message.startswith(f"{kind}: ")


@pytest.mark.parametrize(("outcome", "detail", "fits"), [
    ("ok", None, True), ("ok", "{}", True), ("ok", 1.0, False), ("error", "boom", True), ("error", None, False),
    ("discard", "why", True), ("discard", [1.0, "why"], False), ("retry", [1.5, "why"], True),
    ("retry", [2, "why"], True), ("retry", [-1.0, "why"], False), ("retry", [float("nan"), "why"], False),
    ("retry", "why", False), ("snooze", 7.0, True), ("snooze", 7, True), ("snooze", float("inf"), False),
    ("release", None, True), ("release", "why", False), ("crash", ["why", 9], True), ("crash", ["why", None], True),
    ("crash", "why", False),
])  # fmt: skip
def test_a_detail_must_suit_its_outcome(outcome: str, detail: object, fits: bool) -> None:
    frame = only(encode("report", 1, {"results": [[ID, 1, outcome, detail]]}))
    (result,) = decode_body(protocol.Report, frame).results
    if fits:
        check_result(result)
    else:
        with pytest.raises(ProtocolError, match="does not take the detail"):
            check_result(result)


@pytest.mark.parametrize(("given", "said"), [
    ("x" * 201, f"submit: jobs[0].name is {'x' * 60!r}… of 201 characters; allowed is text of 1 to 200 characters"),
    ("x" * 100_000, "submit: jobs[0].name is wrong; allowed is text of 1 to 200 characters"),  # too long to look at
])  # fmt: skip
def test_what_does_not_fit_is_shown(given: str, said: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_body(protocol.Submit, only(encode("submit", 9, {"jobs": [{"name": given}]})))
    assert (refused.value.message, refused.value.request) == (said, 9)


def test_no_password_is_shown() -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_body(protocol.Hello, only(encode("hello", 0, {"protocol": 1, "role": "client", "password": 4711})))
    assert "password" in refused.value.message
    assert "4711" not in refused.value.message


def test_who_may_say_what() -> None:
    assert not protocol.WORKER_KINDS.keys() & ALLOWED[Role.CLIENT].keys()
    assert ALLOWED[Role.CLIENT].keys() < ALLOWED[Role.WORKER].keys()
    frame = only(encode_error(None, "too_large", "no"))
    assert (frame.kind, frame.request) == ("error", None)
    assert decode_body(protocol.ErrorBody, frame) == protocol.ErrorBody("too_large", "no")


IN_THREADS: Final = """
import msgspec, sys, threading
from pulse import config
from pulse.errors import ProtocolError
from pulse.protocol import answers, frames, requests

sys.setswitchinterval(1e-6)
kinds = [
    kind for module in (requests, answers) for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
]
together = threading.Barrier(4)

def read_all():
    together.wait()
    for kind in kinds:
        body = {name: [{}] for name in kind.__struct_fields__}
        for read in (
            lambda: answers.read(kind, body),
            lambda: frames.decode_body(kind, frames.Frame("x", 1, msgspec.Raw(msgspec.msgpack.encode(body)))),
            lambda: config.load({}),
        ):
            try:
                read()
            except ProtocolError:
                pass

threads = [threading.Thread(target=read_all) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.mark.rest
@pytest.mark.process
def test_types_are_first_used_in_several_threads() -> None:
    """The process would crash: msgspec gives a type to other threads before it knows all of it."""
    for _ in range(3):  # each crashed in 9 of 10
        done = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
