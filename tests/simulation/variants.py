"""Broken variants: one guard each taken out, of the real code or of the database; the simulation must find each."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import msgspec

from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import Steps
from pulse.errors import UnavailableError
from pulse.store.recovery.epochs import NewEpoch
from pulse.store.rows import Ending, EndingKind
from pulse.worker.session import connection, ledger
from pulse_actors.dispatcher.claims import doubts, group_turns, loop
from pulse_actors.dispatcher.epochs import witness
from pulse_actors.dispatcher.liveness import process_watch, silent_workers
from pulse_actors.dispatcher.net import connection as peers
from pulse_actors.dispatcher.requests import jobs
from pulse_actors.dispatcher.workers import deadlines
from pulse_actors.dispatcher.writes import report, report_rows, unwritten
from pulse_actors.watchdog import actor, sweep_guard
from tests.simulation.rows import database
from tests.simulation.rows.workflow_rows import WorkflowRows
from tests.support.store import epoch_rows, limit_rows, rows
from tests.support.store.model import ModelJob

Change = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Variant:
    """
    One of them.

    Attributes:
        changes: Replacements: object, name, instead.
        finding: A part of what the judge must say.
        only: What goes wrong meanwhile: enough to show it, and soon.
        first: Where to begin: a seed that once found it, since each takes a tenth of a second. What changes in the
            product changes what a seed stands for: where a search has become long, it begins at the new one.
        within: Of how many seeds, from that one on, one must find it.
    """

    changes: tuple[Change, ...]
    finding: str
    only: tuple[str, ...] = ()
    first: int = 1
    within: int = 600


def _is_running(self: ModelJob, fence: Sequence[object]) -> bool:
    return self.status == "RUNNING" and self.id == fence[0]


async def _nothing(*_: Any) -> None:
    """What waits for something does not wait."""


async def _nobody_holds(*_: Any) -> set[bytes]:
    return set()


async def _start_before_telling(self: Any) -> None:
    startable = self._ledger.take_startable()
    if startable:
        self._owner.start(startable)
    data = self._frames(startable)
    if data:
        await self._stream.send(data)


async def _reap_the_living(self: Any, worker: Any) -> None:
    held = [pair for pair, one in worker.held.items() if one.started]
    endings = [Ending(job, attempt, worker.identity, EndingKind.SILENT, silent_workers.REASON) for job, attempt in held]
    self._reports.batcher.put(report_rows.Obituary(endings))
    self._being_killed.discard(worker.identity)


async def _insist_once(_self: Any, write: Callable[[], Any]) -> None:
    with contextlib.suppress(UnavailableError):
        await write()


async def _claim_without_doubt(self: Any, *words: Any) -> tuple[bool, float]:
    try:
        return await _CLAIM(self, *words)
    finally:
        self._in_doubt._in_doubt.clear()


def _charged_to_all(
    worker: Any, pair: tuple[bytes, int], _held: object, reason: str, exit_code: int | None, **_: object
) -> Ending:
    return Ending(pair[0], pair[1], worker.identity, EndingKind.CRASHED, reason, exit_code=exit_code)


_END_OF: Final = process_watch._end_of


def _all_are_suspects(*words: Any, **_: object) -> Ending:
    return _END_OF(*words, is_suspect=True)


def _forget_reports(self: Any) -> None:
    self.checkpoints.disconnected()
    self._under_way.clear()


async def _knows_all(_self: Any) -> bool:
    return False


def _floor_stays(self: Any, epoch: int, _highest: int, _instance: object, _back_to: object, now: Any) -> Any:
    self.epochs.append(epoch_rows.Epoch(epoch, now, self.floor))
    return NewEpoch(epoch, self.floor)


async def _remember_before(self: Any, memory: Any, seen: Any) -> bool:
    await self._remember(msgspec.structs.replace(memory, counter=memory.counter + 1))
    return bool(await _TICK(self, memory, seen))


def _open_what_has_a_time(self: Any, key: Any) -> None:
    if self._closed.get(key) != group_turns.NEVER:
        _OPEN(self, key)


def _see_nothing_running(self: limit_rows.Limits, _model: object) -> limit_rows.Seen:
    return limit_rows.Seen({name: limit.claims for name, limit in self.by_name.items()}, Counter())


def _join_blindly(self: WorkflowRows, edge: tuple[bytes, bytes], _now: object) -> None:
    self.jobs[edge[0]].is_parent = True


def _keep_nothing(self: Steps, save: Any) -> Receipt:
    """Nor wait for it."""
    receipt = Receipt()
    receipt.settle()
    return receipt


_OPEN: Final = group_turns.GroupTurns._open
_CLAIM: Final = loop.ClaimLoop._claim_readable
_TICK: Final = witness.Witness._tick
GOES_BACK: Final = ("database goes back",)

VARIANTS: Final[dict[str, Variant]] = {
    "fence by the id alone": Variant(((ModelJob, "is_held", _is_running),), " ended as ", ("operator",), first=1096),
    "obituary before the last reports": Variant(
        ((peers.PeerConnection, "hear_out", _nothing),), "was charged nothing", ("kill a worker", "trap at a word"),
        first=32,
    ),
    "started is told after the call": Variant(
        ((connection.Connection, "_turn", _start_before_telling),), "and was charged nothing", ("trap at a word",),
        first=143, within=600,
    ),
    "nothing is given back": Variant(
        ((doubts.InDoubtClaims, "_give_back", _nobody_holds),), "although no worker was told of it", first=591,
        within=600,
    ),
    "watchdog reaps the living beside it": Variant(
        ((actor.Watchdog, "_in_hand", lambda _self, _workers: set()),), "lives beside it",
        ("stop a worker", "stop an actor"), first=78,
    ),
    "no guard against mass reaping": Variant(
        ((sweep_guard.SweepGuard, "may_reap", lambda _self, _now_s: True),), "lives and beats",
        ("database away", "database clock set"), first=820, within=600,
    ),
    "what cannot be written is not told": Variant(
        ((unwritten.UnwrittenLeases, "run", _nothing),), "lives and beats", ("rows locked",), first=144, within=400
    ),
    "marks are made while nobody can write": Variant(
        ((database, "WRITES", database.WRITES - {"mark_sweep"}), (unwritten.UnwrittenLeases, "run", _nothing)),
        "lives and beats", ("table locked",), first=251, within=400,
    ),
    "reaped before it is dead": Variant(
        ((silent_workers.SilentWorkers, "_kill", _reap_the_living),), "lives and knows of it", first=5
    ),
    "reports are written once": Variant(
        ((report.ReportWriter, "_insist", _insist_once),), "its report was answered", first=51
    ),
    "a lost claim is not doubted": Variant(
        (
            (loop.ClaimLoop, "_claim_readable", _claim_without_doubt),
            (doubts.InDoubtClaims, "doubt", lambda _self, _identity: None),
        ),
        "it does not come to an end",
        ("trap at a statement",),
        first=102,
        within=400,
    ),
    "a death is charged to everybody": Variant(
        ((process_watch, "_end_of", _charged_to_all),), "was charged for", first=3
    ),
    "who runs apart is charged with its worker": Variant(
        ((process_watch, "_end_of", _all_are_suspects),), "in which others ran", first=222, within=400
    ),
    "a worker forgets reports under way": Variant(
        ((ledger.Ledger, "disconnected", _forget_reports),), "it does not come to an end", first=2
    ),
    "what is held may be deleted": Variant(
        ((jobs, "_held_here", _nobody_holds),), "was deleted while its handler runs", ("operator", "stop a worker"),
        first=212, within=600,
    ),
    "hung handlers are left alone": Variant(
        ((deadlines.HandlerDeadlines, "started", lambda _self, _worker, _bounded, _now_s: None),),
        "it does not come to an end",
        first=9,
    ),
    "the floor of an epoch is that of the one before": Variant(
        ((epoch_rows.Ledger, "begin", _floor_stays),), "is handed out twice", GOES_BACK, first=8
    ),
    "claims are made whatever the database knows": Variant(
        ((epoch_rows.Ledger, "knows", lambda _self, _known, _server: True),), "is handed out twice", GOES_BACK, first=17
    ),
    "what was handed out since the last tick is forgotten": Variant(
        ((witness.Witness, "_knows_less", _knows_all),), "is handed out twice", GOES_BACK, first=139
    ),
    "nobody waits for other hosts": Variant(
        ((witness.Witness, "_may_open", lambda _self, _seen: True),), " begins in ", GOES_BACK, first=291
    ),
    "what may run yet is not put off": Variant(
        ((rows.Rows, "put_off", lambda _self, _ids, _put_off_s, _now: None),), " begins in ", GOES_BACK, first=133
    ),
    "what ran before an epoch stays with its worker": Variant(
        ((rows.Rows, "end_epoch", lambda _self, _held, _host, _now: None),), "was charged as", GOES_BACK, first=52
    ),
    "a tick is remembered before it is confirmed": Variant(
        ((witness.Witness, "_tick", _remember_before),), "raised the epoch", ("database flaky",), first=2
    ),
    "a claim counts although another one has ended since": Variant(
        ((limit_rows.Limits, "is_outdated", lambda _self, _name, _seen: False),), " are RUNNING", first=970,
    ),
    "a claim counts nothing": Variant(
        (
            (limit_rows.Limits, "look", _see_nothing_running),
            (limit_rows.Limits, "exceeded", lambda _self, _model: ()),
        ),
        " handlers of the limit",
    ),
    "what was full is left alone": Variant(
        ((group_turns.GroupTurns, "_open", _open_what_has_a_time),), "it does not come to an end",
    ),
    "nobody is told of what is canceled": Variant(
        ((WorkflowRows, "cancel", rows.Rows.cancel),), " is held although ", ("operator",), first=12
    ),
    "who joins a parent does not look at it": Variant(
        ((WorkflowRows, "join", _join_blindly),), " is held although ", ("kill a worker",), first=84
    ),
    "nobody walks through the dependencies": Variant(
        ((actor.Watchdog, "_settle_forgotten", _nothing),), "it does not come to an end", ("kill a worker",),
        first=443,
    ),
    "signals that came meanwhile are not counted": Variant(
        ((WorkflowRows, "has_come", lambda _self, _row, _seen: False),), " waits beside its signal ",
        ("kill a worker",), first=70,
    ),
    "what a wait got is not kept": Variant(((Steps, "_sent", _keep_nothing),), " and in a later attempt ", first=21),
    "a signal goes to each wait": Variant(
        ((Steps, "_had", lambda _self: []),), "which another one had", ("kill a worker",), first=6
    ),
}  # fmt: skip


@contextlib.contextmanager
def applied(name: str | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for where, what, instead in () if name is None else VARIANTS[name].changes:
            stack.enter_context(mock.patch.object(where, what, instead))
        yield
