"""
Steps of a handler: what they returned is kept in the job's checkpoint, beside the handler's own.

A later attempt gets the results of the finished steps, and does not run them again. Nothing is replayed: a step has a
name, and the name is all that the next attempt needs.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias, cast

from pulse.app.workflows.receipt import Receipt, in_loop
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import HandlerError, TooLargeError
from pulse.job import Signal

__all__ = ["CHECKPOINT_MAX_BYTES", "Asleep", "NextSignal", "SignalWaiting", "Steps", "fitting", "split"]

CHECKPOINT_MAX_BYTES: Final = 1024 * 1024  # small resumable state, not the work itself
STEPS: Final = "$steps"  # a checkpoint with steps is an object with these two
OWN: Final = "checkpoint"
SLEEP: Final = "$sleep "  # before the name of a sleep; names of steps do not begin so
WAIT: Final = "$wait "  # before the number of a wait, and the name of its signal
_NAME_MAX: Final = 200
_SLEEP_MAX_S: Final = 1e9  # as on the wire: 31 years


class NextSignal(NamedTuple):
    """
    What the server knows of the signals of a job.

    Attributes:
        signal: The next one; None: there is none.
        sent: How many were sent to the job.
        now_s: The time, Unix seconds.
        is_over: Whether the attempt before ended with this wait, and its time has passed.
    """

    signal: Signal | None
    id: int = 0
    sent: int = 0
    now_s: float = 0.0
    is_over: bool = False


Seal: TypeAlias = Callable[[str], str]
Save: TypeAlias = Callable[[str], Receipt]
Look: TypeAlias = Callable[[str, Sequence[int]], NextSignal]


class Asleep(BaseException):
    """
    Ends an attempt that sleeps: it goes through the handler, and through each ``except Exception`` of it.

    Args:
        seconds: How long.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the attempt is given back for {seconds:g} s")
        self.seconds = seconds


class SignalWaiting(Asleep):
    """
    Ends an attempt that waits for a signal.

    Args:
        seconds: How long at most.
        signal: Its name.
        sent: How many signals the job had when there was none of that name: another one may have come since.
    """

    def __init__(self, seconds: float, signal: str, sent: int) -> None:
        super().__init__(seconds)
        self.signal = signal
        self.sent = sent


class Steps:
    """
    The steps of one attempt. Used from any thread.

    Args:
        attempt: Number of the attempt.
        results: Those of the attempts before, by name.
        own: The newest checkpoint of the handler itself.
        was_asleep: Whether the attempt before ended in a sleep.
        seal: Encrypts JSON text.
        why_awake: Why no attempt may sleep here.
    """

    def __init__(
        self,
        attempt: int,
        results: Mapping[str, JsonValue],
        own: JsonValue = None,
        *,
        was_asleep: bool = False,
        seal: Seal = str,
        why_awake: str | None = None,
    ) -> None:
        self._attempt = attempt
        self._results = dict(results)
        self._own: str | None = None if own is None else json_text.dumps(own)
        self._is_mine = own is not None and isinstance(own, dict) and STEPS in own
        self._was_asleep = was_asleep
        self._seal = seal
        self._why_awake = why_awake
        self._names: set[str] = set()  # used in this attempt
        self._unsaved: set[str] = set()  # their results are not known to be with the server
        self._sleeps = 0
        self._waits: dict[str, set[int]] = {}  # numbers in use, by the name of the signal
        self._saving = threading.Lock()

    def checkpoint(self, data: JsonValue, save: Callable[[str], object]) -> None:
        """
        Keep *data* of the handler, and its steps as they are.

        Raises:
            ValueError: *data* is not JSON.
            TooLargeError: Both together are more than 1 MiB.
        """
        try:
            text = json_text.dumps(data)
        except ValueError as error:
            raise ValueError(f"checkpoint is not JSON: {error}") from None
        with self._saving:
            before = self._own, self._is_mine
            self._own, self._is_mine = text, isinstance(data, dict) and STEPS in data
            try:
                save(self._text())
            except TooLargeError:
                self._own, self._is_mine = before
                raise

    def step(self, save: Save, name: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """
        Run *function*, unless a step of that name has finished; returns its result, or in a loop what to await for it.

        Raises:
            HandlerError: The name is not allowed.
        """
        given = cast("object", name)  # whatever its type says
        if not isinstance(given, str) or not 1 <= len(given) <= _NAME_MAX or given.startswith("$"):
            raise HandlerError(
                f"step {given!r:.100}: a name of 1 to {_NAME_MAX} characters is allowed, the first not $"
            )
        if in_loop():
            return self._step_in_loop(save, name, function)
        with self._used(name):
            if name not in self._results:
                value = function()
                if inspect.isawaitable(value):
                    if inspect.iscoroutine(value):
                        value.close()
                    raise HandlerError(f"step {name!r} is async: only a handler declared with async def can run it")
                self._put(name, value)
            if name in self._unsaved:
                self._sent(save).wait()
                self._unsaved.discard(name)
            return self._copy(name)

    async def _step_in_loop(self, save: Save, name: str, function: Callable[[], Any]) -> JsonValue:
        from anyio.to_thread import run_sync

        with self._used(name):
            if name not in self._results:
                value = function() if inspect.iscoroutinefunction(function) else await run_sync(function)
                if inspect.isawaitable(value):
                    value = await cast("Awaitable[object]", value)
                self._put(name, value)
            if name in self._unsaved:
                await self._sent(save).arrive()
                self._unsaved.discard(name)
            return self._copy(name)

    def sleep(self, save: Save, seconds: float, name: str | None) -> Any:  # noqa: ANN401 - None, or what to await
        """
        Give the attempt back for so long, unless that sleep is over.

        Raises:
            Asleep: It is not over.
            HandlerError: No attempt may sleep here, or the name was used.
            ValueError: *seconds* is out of range.
        """
        if self._why_awake is not None:
            raise HandlerError(self._why_awake)
        if not 0 <= seconds <= _SLEEP_MAX_S:
            raise ValueError(f"sleep: between 0 and {_SLEEP_MAX_S:g} seconds are allowed, not {seconds!r}")
        if name is None:
            self._sleeps += 1
            name = str(self._sleeps)
        return (self._sleep_in_loop if in_loop() else self._sleep)(save, seconds, SLEEP + name)

    def _sleep(self, save: Save, seconds: float, key: str) -> None:
        with self._used(key):
            left_s = self._left_s(key, seconds)
            if left_s > 0:
                self._put(key, [time.time() + left_s, self._attempt])
                self._sent(save).wait()
                raise Asleep(left_s)

    async def _sleep_in_loop(self, save: Save, seconds: float, key: str) -> None:
        with self._used(key):
            left_s = self._left_s(key, seconds)
            if left_s > 0:
                self._put(key, [time.time() + left_s, self._attempt])
                await self._sent(save).arrive()
                raise Asleep(left_s)

    def _left_s(self, key: str, seconds: float) -> float:
        """
        How much longer that sleep lasts.

        The server's clock decides when the attempt after a sleep begins; this one only after a crash, which leaves no
        attempt that ended in the sleep.
        """
        found = self._results.get(key)
        if not isinstance(found, list):
            return seconds
        until_s, slept = cast("tuple[float, int]", found)
        if self._was_asleep and slept == self._attempt - 1:
            until_s = min(until_s, time.time())
            self._results[key] = [until_s, slept]  # over for the attempts after this one, too
        return max(0.0, until_s - time.time())

    def wait(self, save: Save, look: Look, name: str, timeout_s: float | None) -> Any:  # noqa: ANN401 - or what to await
        """
        The next signal of that name, or None when the time is over; gives the attempt back if it has not come.

        Raises:
            SignalWaiting: It has not come.
            HandlerError: No attempt may wait here, or the name is not allowed.
            ValueError: *timeout_s* is out of range.
        """
        if self._why_awake is not None:
            raise HandlerError(self._why_awake)
        given = cast("object", name)
        if not isinstance(given, str) or not 1 <= len(given) <= _NAME_MAX:
            raise HandlerError(f"signal {given!r:.100}: a name of 1 to {_NAME_MAX} characters is allowed")
        if timeout_s is not None and not 0 <= timeout_s <= _SLEEP_MAX_S:
            raise ValueError(f"wait_for: between 0 and {_SLEEP_MAX_S:g} seconds are allowed, not {timeout_s!r}")
        return (self._wait_in_loop if in_loop() else self._wait)(save, look, name, timeout_s)

    def _wait(self, save: Save, look: Look, name: str, timeout_s: float | None) -> Signal | None:
        with self._waiting(name) as key:
            while not self._is_decided(key):
                found = look(name, self._had())
                left_s = self._decide(key, found, timeout_s)
                if left_s > 0:
                    if timeout_s is not None:
                        self._sent(save).wait()
                    raise SignalWaiting(left_s, name, found.sent)
            if key in self._unsaved:
                self._sent(save).wait()
                self._unsaved.discard(key)
            return self._signal(key, name)

    async def _wait_in_loop(self, save: Save, look: Look, name: str, timeout_s: float | None) -> Signal | None:
        from anyio.to_thread import run_sync

        with self._waiting(name) as key:
            while not self._is_decided(key):
                found = await run_sync(look, name, self._had(), abandon_on_cancel=True)
                left_s = self._decide(key, found, timeout_s)
                if left_s > 0:
                    if timeout_s is not None:
                        await self._sent(save).arrive()
                    raise SignalWaiting(left_s, name, found.sent)
            if key in self._unsaved:
                await self._sent(save).arrive()
                self._unsaved.discard(key)
            return self._signal(key, name)

    @contextmanager
    def _waiting(self, name: str) -> Generator[str]:
        """The key of a wait: those for signals of one name are counted; the number of one that fails is free again."""
        with self._saving:
            numbers = self._waits.setdefault(name, set())
            number = next(one for one in count(1) if one not in numbers)
            numbers.add(number)
        try:
            yield f"{WAIT}{number} {name}"
        except BaseException:
            with self._saving:
                numbers.discard(number)
            raise

    def _is_decided(self, key: str) -> bool:
        """Whether that wait has its signal, or is over."""
        found = self._results.get(key)
        return isinstance(found, dict) and "until_s" not in found

    def _had(self) -> list[int]:
        """The ids of the signals that waits of this job have."""
        waits = (cast("dict[str, Any]", value) for key, value in self._results.items() if key.startswith(WAIT))
        return [one["id"] for one in waits if "id" in one]

    def _decide(self, key: str, found: NextSignal, timeout_s: float | None) -> float:
        """How long to wait on, by the server's clock; 0: no longer, or another wait has got that signal meanwhile."""
        signal = found.signal
        with self._saving:
            if signal is not None:
                if found.id in self._had():
                    return 0.0
                decided: JsonValue = {"id": found.id, "payload": signal.payload, "sent_at": signal.sent_at.timestamp()}
            else:
                left_s = self._wait_left_s(key, found, timeout_s)
                if left_s > 0:
                    return left_s
                decided = {"over": True}
            try:
                self._keep(key, decided)
            except ValueError as error:  # SQL can send numbers that Python does not write
                raise HandlerError(f"the payload of signal {key.split(' ', 2)[2]!r} cannot be kept: {error}") from None
        return 0.0

    def _wait_left_s(self, key: str, found: NextSignal, timeout_s: float | None) -> float:
        """How long a wait that has no signal goes on."""
        if timeout_s is None:
            return _SLEEP_MAX_S
        before = cast("dict[str, Any]", self._results.get(key, {}))
        if found.is_over and before.get("attempt") == self._attempt - 1:
            return 0.0
        until_s: float = before.get("until_s", found.now_s + timeout_s)
        self._results[key] = {"until_s": until_s, "attempt": self._attempt}
        return until_s - found.now_s

    def _signal(self, key: str, name: str) -> Signal | None:
        found = cast("dict[str, Any]", self._copy(key))
        if "id" not in found:
            return None
        return Signal(name=name, payload=found["payload"], sent_at=datetime.fromtimestamp(found["sent_at"], UTC))

    @contextmanager
    def _used(self, name: str) -> Generator[None]:
        """The name of a step that runs; free again if it fails."""
        with self._saving:
            if name in self._names:
                raise HandlerError(f"step {name!r} has run in this attempt: give each one a name of its own")
            self._names.add(name)
        try:
            yield
        except BaseException:
            self._names.discard(name)
            raise

    def _put(self, name: str, value: object) -> None:
        from pulse.app.outcome import result_text

        try:
            result = json_text.loads(result_text(value))
        except ValueError as error:
            raise ValueError(f"the result of step {name!r} is not JSON: {error}") from None
        with self._saving:
            self._keep(name, result)

    def _keep(self, name: str, result: JsonValue) -> None:
        """Keep a result, unless all of them are too large then; within the lock."""
        before = dict(self._results)
        self._results[name] = result
        try:
            self._text()
        except (TooLargeError, ValueError):
            self._results = before
            raise
        self._unsaved.add(name)

    def _sent(self, save: Save) -> Receipt:
        """All of them, on their way: one after the other, so that the newest is sent last."""
        with self._saving:
            return save(self._text())

    def _copy(self, name: str) -> JsonValue:
        """The result: one that the handler may change."""
        return json_text.loads(json_text.dumps(self._results[name]))

    def _text(self) -> str:
        own = "null" if self._own is None else self._seal(self._own)
        if self._results or self._is_mine:
            steps = self._seal(json_text.dumps(self._results))
            own = f'{{"{STEPS}":{steps},"{OWN}":{own}}}'
        return fitting("checkpoint", own, CHECKPOINT_MAX_BYTES)


def split(stored: JsonValue) -> tuple[JsonValue, JsonValue]:
    """The steps in a stored checkpoint, and the handler's own; each may be encrypted."""
    if isinstance(stored, dict) and STEPS in stored:
        return stored[STEPS], stored.get(OWN)
    return {}, stored


def fitting(what: str, text: str, max_bytes: int) -> str:
    """
    *text*.

    Raises:
        TooLargeError: It is longer.
    """
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise TooLargeError(f"{what} has {size} bytes; at most {max_bytes} are allowed")
    return text
