"""``pulse ctl status``: ask the supervisor and the dispatcher at once, and show what they know, whatever is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import click

from pulse.cli.lazy import examples
from pulse.cli.output.render import Screen, write_document
from pulse.cli.server import LOOKED, Server, current_server
from pulse.cli.system.status_page import show_status
from pulse.errors import NobodyAnswersError, PulseError
from pulse.protocol.answers import Status, read
from pulse.system import processes

__all__ = ["Question", "ask_both", "merge", "status"]

Body = Mapping[str, object]

WHOLE_S: Final = 1.65  # of the 2 s from the start of the interpreter, which may take half a second, to its end
LEAST_S: Final = 1.0  # where that takes longer: an answer that comes late is worth more than none
SUPERVISOR_S: Final = 1.4  # it asks its actors for up to 0.8 s before it answers
DISPATCHER_S: Final = 1.0
_KEYS: Final = ("supervisor", "actors", "pools", "database", "gate", "workers", "jobs", "jobs_exact")
_AT_ONE_TIME: Final = ("database", "jobs", "jobs_exact")  # what belongs together comes from one of the two


@click.command(epilog=examples("pulse ctl status", "pulse ctl status --json | jq .jobs"))
@click.option("--json", "as_json", is_flag=True, help="Print the whole as one JSON document.")
def status(*, as_json: bool) -> None:
    """Show supervisor, actors, database, gate, workers and counts of jobs; within 2 seconds, whatever is down."""
    server = current_server()
    supervisor, dispatcher = ask_both(server, max(LEAST_S, WHOLE_S - processes.age_s()))
    if isinstance(dispatcher, PulseError) and (isinstance(supervisor, PulseError) or not supervisor):
        raise _neither(supervisor, dispatcher) if isinstance(supervisor, PulseError) else dispatcher
    answers = [None if isinstance(answer, PulseError) else answer for answer in (supervisor, dispatcher)]
    body = merge(*answers)
    if as_json:
        write_document(body)
        return
    silent = {
        who: answer.message
        for who, answer in (("supervisor", supervisor), ("dispatcher", dispatcher))
        if isinstance(answer, PulseError)
    }
    show_status(read(Status, body), silent, Screen(), time.time())


def merge(supervisor: Body | None, dispatcher: Body | None) -> dict[str, object]:
    """
    One document of two: of the supervisor what it alone knows, of the dispatcher what it knows at first hand.

    Args:
        supervisor: Its answer; None: it did not answer.
        dispatcher: The same.

    Returns:
        Every key of the contract, and what else there was; null where neither knew.

    """
    first, second = supervisor or {}, dispatcher or {}
    merged: dict[str, object] = {**second, **first}
    for key in _KEYS:
        told = first.get(key)
        merged[key] = told if told is not None else second.get(key)
    if second.get("database") is not None:  # at first hand
        merged.update({key: second.get(key) for key in _AT_ONE_TIME})
    if second.get("gate") is not None:
        merged["gate"] = second["gate"]
    merged["workers"] = second.get("workers")
    return merged


def ask_both(server: Server, within_s: float = SUPERVISOR_S) -> tuple[Body | PulseError, Body | PulseError]:
    """What supervisor and dispatcher say, or why they say nothing; asked at once, and answered in time."""
    supervisor_s, dispatcher_s = min(SUPERVISOR_S, within_s), min(DISPATCHER_S, within_s)
    if server.elsewhere() is not None:  # the dispatcher tells what its supervisor tells it
        return {}, Question(lambda: server.ask("status"), server.timeout_s).answer()
    supervisor = Question(lambda: server.ask_supervisor("status", timeout_s=supervisor_s), supervisor_s)
    dispatcher = Question(lambda: server.ask("status", timeout_s=dispatcher_s), dispatcher_s)
    return supervisor.answer(), dispatcher.answer()


class Question:
    """
    A question that is asked in a thread of its own; it is a daemon, so that nothing waits for it in the end.

    Args:
        ask: Asks, and returns the answer.
        timeout_s: Longest wait, seconds.

    """

    def __init__(self, ask: Callable[[], Body], timeout_s: float) -> None:
        self._ask = ask
        self._deadline_s = time.monotonic() + timeout_s
        self._answer: Body | PulseError | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self) -> Body | PulseError:
        """What came, or why nothing did."""
        self._thread.join(max(0.0, self._deadline_s - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        return NobodyAnswersError("no answer in time") if self._answer is None else self._answer

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except PulseError as error:
            self._answer = error
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits
            self._failure = error


def _neither(supervisor: PulseError, dispatcher: PulseError) -> PulseError:
    for error in (dispatcher, supervisor):
        if not isinstance(error, NobodyAnswersError):
            return error
    return NobodyAnswersError(f"{dispatcher.message}; {supervisor.message.removeprefix(LOOKED)}")
