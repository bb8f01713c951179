"""
The hub between the actors: it routes hints by name, counts signs of life, and asks for status.

Hints may be lost: one that is too large, or whose target is missing or has a full buffer, is dropped. Only speed
depends on hints, and a hub that waits for a frozen actor would freeze with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from pulse.errors import ProtocolError
from pulse.protocol import Frame, decode_body, encode
from pulse.protocol.bus import (
    EVERYBODY,
    MAX_HINT_BYTES,
    NOTHING,
    ActorFailed,
    ActorHello,
    ActorPong,
    HintEvent,
    HintFrame,
    hint,
)
from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.children.events import (
    BusBroken,
    Event,
    HelloReceived,
    PongReceived,
    ReadyReceived,
    RefusalReceived,
)


class Hub:
    """
    All links, by the names of their children.

    Args:
        report: Called with a child's name and what it says about itself.
        describe: The supervisor's own part of ``status``, for an actor that asks.
        log: Called with an event and fields.
    """

    def __init__(
        self,
        report: Callable[[str, Event], None],
        describe: Callable[[], dict[str, object]],
        log: Callable[..., object],
    ) -> None:
        self._report = report
        self._describe = describe
        self._log = log
        self._links: dict[str, BusLink] = {}
        self._kinds: Mapping[str, Callable[[BusLink, Frame], None]] = {
            "ready": lambda link, _frame: report(link.name, ReadyReceived()),
            "pong": self._pong,
            "hint": self._hint,
            "status": self._status,
            "failed": self._failed,
            "ok": lambda link, frame: link.take_answer(frame),
            "error": lambda link, frame: link.take_answer(frame),
        }

    def link(self, name: str) -> BusLink | None:
        """The link of a child whose process is alive."""
        return self._links.get(name)

    def listeners(self) -> list[BusLink]:
        """The links of all children that have their settings, and so can be asked."""
        return [link for link in self._links.values() if link.briefed]

    def attach(self, link: BusLink) -> None:
        """Add the link of a new process."""
        self._links[link.name] = link

    async def serve(self, link: BusLink) -> None:
        """Serve *link* until it ends."""
        await link.run(
            lambda frame: self._handle(link, frame),
            lambda error: self._report(link.name, BusBroken(error.message)),
        )

    def hang_up(self, link: BusLink) -> None:
        """Read the last frames of a process that has ended, and forget its link."""
        link.read_rest_nowait(lambda frame: self._handle(link, frame))
        link.close()
        if self._links.get(link.name) is link:
            del self._links[link.name]

    def tell_nowait(self, name: str, event: HintEvent, data: Struct = NOTHING) -> bool:
        """Send a hint of the supervisor itself; it is not dropped while the actor lives. Returns whether it does."""
        link = self._links.get(name)
        if link is None or not link.briefed:
            return False
        told = hint(name, event, data)
        link.send_nowait("hint", None, {"from": "supervisor", "event": told.event, "data": told.data})
        return True

    def _handle(self, link: BusLink, frame: Frame) -> None:
        try:
            if not link.greeted:
                self._hello(link, frame)
            elif (handler := self._kinds.get(frame.kind)) is not None:
                handler(link, frame)
            else:
                self._log("bus_frame_ignored", name=link.name, kind=frame.kind)
        except ProtocolError as error:
            self._report(link.name, BusBroken(error.message))

    def _hello(self, link: BusLink, frame: Frame) -> None:
        if frame.kind != "hello":
            raise ProtocolError(f"{frame.kind} before hello")
        hello = decode_body(ActorHello, frame)
        if (hello.name, hello.pid) != (link.name, link.pid):
            raise ProtocolError(f"hello of {hello.name} (pid {hello.pid}), not of {link.name} (pid {link.pid})")
        link.greet()
        self._report(link.name, HelloReceived())

    def _pong(self, link: BusLink, frame: Frame) -> None:
        if link.takes_pong(frame.request):
            pong = decode_body(ActorPong, frame)
            self._report(link.name, PongReceived(pong.turn_age_s, upgrades=pong.upgrades))

    def _failed(self, link: BusLink, frame: Frame) -> None:
        self._report(link.name, RefusalReceived(decode_body(ActorFailed, frame).message))

    def _status(self, link: BusLink, frame: Frame) -> None:
        link.send_nowait("ok", frame.request, self._describe())

    def _hint(self, link: BusLink, frame: Frame) -> None:
        size_bytes = len(bytes(frame.body))
        sent = decode_body(HintFrame, frame)
        if size_bytes > MAX_HINT_BYTES:
            self._dropped(link, sent, sent.to, f"{size_bytes} bytes, at most {MAX_HINT_BYTES} are passed on")
            return
        passed_on = encode("hint", None, {"from": link.name, "event": sent.event, "data": sent.data})
        names = [name for name in self._links if name != link.name] if sent.to == EVERYBODY else [sent.to]
        for name in names:
            to = self._links.get(name)
            if to is None or not to.briefed:
                self._dropped(link, sent, name, "it is not running")
            elif not to.try_send_nowait(passed_on):
                self._dropped(link, sent, name, "its buffer is full")

    def _dropped(self, link: BusLink, sent: HintFrame, name: str, reason: str) -> None:
        self._log("hint_dropped", source=link.name, to=name, hint=sent.event, reason=reason)
