"""The fuzzer's frames: of every kind, right and wrong, and none that would touch anything of others."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from pulse.errors import ProtocolError
from pulse.protocol import (
    CLIENT_KINDS,
    SUPERVISOR_KINDS,
    WORKER_KINDS,
    ActorRequest,
    BrokenStreamError,
    DispatchGate,
    DrainRequest,
    FrameReader,
    Hello,
    TopicSet,
    TopicUnset,
    decode_body,
)
from tests.fuzz.shapes import OWN, Maker
from tests.fuzz.spoiling import framed, lying, mutated, pack, spoil

LIMIT: Final = 8 * 1024 * 1024
ACTORS: Final = frozenset({"dispatcher", "scheduler", "pause", "watchdog"})
# Requests that are carried out on more than jobs: only on topics of the fuzzer's own, and on no process at all.
GUARDED: Final[Mapping[str, type[Struct]]] = {
    "dispatch.pause": DispatchGate, "dispatch.resume": DispatchGate, "topics.set": TopicSet,
    "topics.unset": TopicUnset, "actors.restart": ActorRequest, "drain": DrainRequest,
}  # fmt: skip
KEEPS: Final = ("retention_s", "retention_dead_s")
KEPT_S: Final = 3600.0
OF_A_TOPIC: Final = frozenset(
    {"dispatch.pause", "dispatch.resume", "topics.set", "topics.unset", "topics.get", "topics.groups"}
)
# What the server does much for, if it is right: often enough to be tried, too seldom to be a load test.
DEAR: Final = frozenset(
    {
        *("stats", "status", "jobs.stack", "schedules.declare", "logs"),
        *("jobs.list", "schedules.list", "topics.list", "topics.groups", "audit.list"),
    }
)
DEAR_SHARE: Final = 0.05
STRANGE_SHARE: Final = 0.08
STILL_RIGHT_SHARE: Final = 0.25  # of those that were spoiled where nobody looks
RIGHT_SHARE: Final = 0.13  # the strange ones among them: what is right makes the database work
STRANGE_KINDS: Final = (
    *("hello", "welcome", "error", "ok", "assign", "reported", "beat", "stop", "hint", "ready", "pong", "failed"),
    *(
        "", "x" * 64, "submit ", "SUBMIT", "jobs", "jobs.", "__class__", "\0", "\N{SNOWMAN}", "drain", "started",
        "report",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame; *deletes*: jobs that may be gone after it."""

    data: bytes
    kind: str
    number: int | None = None
    deletes: Sequence[bytes] = ()


class Frames:
    """
    Frames of one peer.

    Args:
        rng: All choices.
        own: Jobs and schedules of the fuzzer.
        held: Attempts that a worker names: its own, and other workers'.
    """

    def __init__(
        self,
        rng: random.Random,
        kinds: Mapping[str, type[Struct]],
        own: Sequence[bytes],
        held: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        self._rng = rng
        self._kinds = kinds
        self._names = [*sorted(kinds), *(name for name in sorted(WORKER_KINDS) if name in kinds for _ in range(8))]
        self._maker = Maker(rng, own)
        self._held = held
        self._number = 0

    def next(self) -> Sent:
        """A frame that is MessagePack, with its envelope: the connection lives on, whatever is in it."""
        choice = self._rng.random()
        if choice < STRANGE_SHARE:
            return self._strange()
        sent = self._made(is_right=choice < RIGHT_SHARE)
        while not is_whole(sent.data) or (sent.kind in GUARDED and not is_harmless(sent.data)):
            sent = self._made(is_right=False)
        return sent

    def broken(self) -> Sent:
        """One that may end the connection: with changed bytes, or another length."""
        sent = self._made(is_right=True)
        payload = sent.data[4:]
        data = lying(self._rng, payload, LIMIT) if self._rng.random() < 0.2 else framed(mutated(self._rng, payload))
        return Sent(data, sent.kind, sent.number, sent.deletes) if is_harmless(data) else self.broken()

    def _made(self, *, is_right: bool) -> Sent:
        kind = self._rng.choice(self._names)
        is_seldom = kind in DEAR and self._rng.random() > DEAR_SHARE
        body = self._maker.body(self._kinds[kind])
        self._name_own(kind, body)
        deletes = self._ids_of(body) if kind == "jobs.delete" else ()
        number = self._next_number()
        payload = pack([kind, number, body if is_right and not is_seldom else spoil(self._rng, body)])
        is_spoiled = is_seldom or not is_right
        if is_spoiled and (is_seldom or self._rng.random() > STILL_RIGHT_SHARE) and fits(self._kinds[kind], payload):
            return self._made(is_right=False)
        return Sent(framed(payload), kind, number, deletes)

    def _name_own(self, kind: str, body: dict[str, object]) -> None:
        if kind in OF_A_TOPIC:
            body["topic"] = self._maker.topic()
        refs = body.get("jobs") or body.get("results")
        if kind in WORKER_KINDS and isinstance(refs, list):
            for ref in refs:
                if self._held and self._rng.random() < 0.8:
                    ref[:2] = self._rng.choice(self._held)

    @staticmethod
    def _ids_of(body: Mapping[str, object]) -> Sequence[bytes]:
        ids = body.get("ids")
        return [one for one in ids if isinstance(one, bytes)] if isinstance(ids, list) else ()

    def _strange(self) -> Sent:
        rng = self._rng
        kind = rng.choice(STRANGE_KINDS)
        number = rng.choice((None, self._next_number(), 0, 2**63 - 1))
        data = framed(pack([kind, number, {"a": self._maker.value_of_any()}, *(["later"] * rng.randint(0, 3))]))
        return Sent(data, kind, number) if is_harmless(data) else self._strange()

    def _next_number(self) -> int:
        self._number += 1
        return self._number


def hello(rng: random.Random, *, role: str, worker: str = "") -> dict[str, object]:
    body: dict[str, object] = {"protocol": 1, "role": role}
    if worker:
        more = Maker(rng).body(Hello)
        body |= {key: more[key] for key in ("topics", "names", "handlers", "running") if key in more}
        body |= {"worker": worker, "capacity": rng.choice((0, 1, 3, 20))}
        if rng.random() < 0.3:
            body["session"] = rng.randbytes(16)
    if rng.random() < 0.2:
        body["behalf"] = "somebody"
    return body


def is_whole(data: bytes) -> bool:
    """Whether a server reads on behind it."""
    try:
        return len(FrameReader().feed(data)) == 1
    except BrokenStreamError:
        return False


def fits(kind: type[Struct], payload: bytes) -> bool:
    """Whether it would be carried out: the spoiled field may be one that nobody reads."""
    try:
        decode_body(kind, FrameReader().feed(framed(payload))[0])
    except ProtocolError:
        return False
    return True


def is_harmless(data: bytes) -> bool:
    """Whether no frame in *data* would change anything of others."""
    reader = FrameReader()
    try:
        frames = reader.feed(data)
    except BrokenStreamError as error:
        frames = list(error.frames)
    for frame in frames:
        kind = GUARDED.get(frame.kind)
        if kind is None:
            continue
        try:
            body = decode_body(kind, frame)
        except ProtocolError:
            continue
        match body:
            case TopicSet():  # what is deleted because it is old would be taken for lost
                harmless = body.topic.startswith(OWN) and not any(map(_is_short, map(body.policy.get, KEEPS)))
            case DispatchGate() | TopicUnset():
                harmless = body.topic.startswith(OWN)
            case ActorRequest():
                harmless = body.name not in ACTORS
            case _:
                harmless = False
        if not harmless:
            return False
    return True


def _is_short(kept_s: object) -> bool:
    return isinstance(kept_s, int | float) and kept_s < KEPT_S


OF_CLIENTS: Final = CLIENT_KINDS
OF_WORKERS: Final = {**CLIENT_KINDS, **WORKER_KINDS}
OF_OPERATORS: Final = SUPERVISOR_KINDS
