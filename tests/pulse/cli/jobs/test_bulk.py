"""Changes of many jobs, before and after the server is asked: what is refused, and how it is undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import click
import msgspec
import pytest
from click.testing import CliRunner

from pulse.cli import lookup
from pulse.cli.jobs import bulk, change, filters
from pulse.client.client import Client
from pulse.errors import ForbiddenError, PulseError
from pulse.ops.bulk import ACTIONS
from pulse.protocol.answers import ChangedAnswer

IDS = [UUID(int=number).bytes for number in range(30)]
FEW = IDS[:2]
MANY = [UUID(int=number).bytes for number in range(bulk.MOST_PER_REQUEST + 1)]
CANCEL = ACTIONS["cancel"]


@pytest.mark.parametrize(("ids", "filters", "dry_run", "said"), [
    (FEW, {"topic": "t"}, False, "ids and options that choose jobs cannot be given together"),
    ([], {}, False, "which jobs?"),
    (FEW, {}, True, "--dry-run counts what options choose"),
    ([], {"status": ["PENDING", "COMPLETED"]}, True, "--status COMPLETED: jobs can be canceled that are PENDING"),
])  # fmt: skip
def test_what_is_not_understood(ids: list[bytes], filters: Mapping[str, object], dry_run: bool, said: str) -> None:
    """No server is asked: what was meant as a look must not become a change."""
    with pytest.raises(click.UsageError, match=said):
        bulk.change(CANCEL, ids, filters, bulk.BulkOptions(dry_run, yes=True, as_json=False))


@dataclass(slots=True)
class Wearying:
    """A server that changes all that it is asked to, so many times; then it refuses. One job waits there."""

    answers: int
    routes: None = None  # one queue

    def route(self, _topic: object) -> None: ...

    def check_topic(self, _topic: object) -> None: ...

    @contextmanager
    def client(self) -> Iterator[Wearying]:
        yield self

    def request(self, _kind: str, body: Mapping[str, Any], *, repeatable: bool) -> Mapping[str, object]:
        if repeatable:
            return {"jobs": [{"id": IDS[0], "status": "PENDING", "topic": "t"}], "next": None}
        if not self.answers:
            raise ForbiddenError("no more")
        self.answers -= 1
        return {"done": body["ids"], "refused": []}


def test_a_refusal_in_the_middle_is_told_with_what_was_done() -> None:
    """The first one is an error like that of any request: nothing was done, and nothing is left in doubt."""
    changed, failure = bulk._apply(cast("Client", Wearying(1)), CANCEL, MANY, {})
    assert (len(changed.done), str(failure)) == (bulk.MOST_PER_REQUEST, "no more")
    with pytest.raises(ForbiddenError, match=r"^no more$"):
        bulk._apply(cast("Client", Wearying(0)), CANCEL, MANY, {})


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_only_counted_is_not_changed(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Wearying(1)
    monkeypatch.setattr(bulk, "current_server", lambda: server)
    bulk.change(CANCEL, [], {"topic": "t"}, bulk.BulkOptions(dry_run, yes=True, as_json=False))
    said = "would cancel 1 job; nothing was done" if dry_run else "1 job canceled"
    assert said in capsys.readouterr().out
    assert server.answers == dry_run


def test_a_count_as_a_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bulk, "current_server", lambda: Wearying(0))
    bulk.change(CANCEL, [], {"topic": "t"}, bulk.BulkOptions(dry_run=True, yes=False, as_json=True))
    counted = msgspec.json.decode(capsys.readouterr().out)
    assert counted["counts"] == [{"status": "PENDING", "topic": "t", "jobs": 1}]


def test_what_is_named_is_changed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By its ids alone: nothing is counted, and nobody asked."""
    server = Wearying(1)
    monkeypatch.setattr(bulk, "current_server", lambda: server)
    monkeypatch.setattr(bulk, "jobs_of", lambda words: [*words])
    bulk.change(CANCEL, FEW, {}, bulk.BulkOptions(dry_run=False, yes=False, as_json=False))
    assert capsys.readouterr().out == "".join(f"canceled {UUID(bytes=one)}\n" for one in FEW)
    assert server.answers == 0


@pytest.mark.parametrize("command", [change.cancel, change.retry])
def test_with_dependents(command: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are done, too, and nothing is left; options that choose jobs take none along."""
    asked: list[Mapping[str, Any]] = []

    class Server(Wearying):
        def request(self, _kind: str, body: Mapping[str, Any], *, repeatable: bool) -> Mapping[str, object]:
            assert not repeatable
            asked.append(body)
            return {"done": [*body["ids"], *IDS[5:8]], "refused": []}

    for module in (bulk, filters, lookup):
        monkeypatch.setattr(module, "current_server", lambda: Server(1))
    done = CliRunner().invoke(command, ["--with-dependents", str(UUID(bytes=FEW[0]))])
    assert (done.exit_code, done.output.count("\n")) == (0, 4)
    assert asked == [{"with_dependents": True, "ids": FEW[:1]}]
    done = CliRunner().invoke(command, ["--with-dependents", "--topic", "t"])
    assert (done.exit_code, "--with-dependents is allowed with ids only" in done.output) == (2, True)


def test_a_no_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "confirm", lambda _: False)
    with pytest.raises(click.exceptions.Exit) as ended:
        bulk._confirm("cancel 2 jobs?")
    assert ended.value.exit_code == 1


def test_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code says whether all was done, and the message what is left."""
    done = ChangedAnswer(FEW[:1], [])
    bulk._conclude(done, None, asked=1)
    with pytest.raises(PulseError, match="no more; 1 job left, 1 of which may have been reached"):
        bulk._conclude(done, ForbiddenError("no more"), asked=2)
    with pytest.raises(click.exceptions.Exit) as ended:
        bulk._conclude(done, None, asked=2)
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "pulse: stopped; 1 job not touched\n")
    with pytest.raises(click.exceptions.Exit) as ended:
        bulk._conclude(ChangedAnswer(FEW[:1], [(FEW[1], "not_found")]), None, asked=2)
    assert ended.value.exit_code == 1


def undo(verb: str, ids: list[bytes], before: list[Any], **filters: object) -> list[str]:
    return list(bulk._undo(ACTIONS[verb], ChangedAnswer(ids, [], before), filters))


def test_few_are_undone_by_their_ids() -> None:
    named = " ".join(str(UUID(bytes=one)) for one in FEW)
    assert undo("cancel", FEW, []) == [f"to undo: pulse ctl jobs retry {named}"]
    assert undo("change", FEW, [(one, "a b", 5) for one in FEW]) == [
        f"to undo: pulse ctl jobs change --to-topic 'a b' --priority 5 {named}"
    ]
    assert undo("delete", FEW, []) == []


def test_a_completed_job_that_runs_again_has_no_undo() -> None:
    """A cancel would end the new run, and bring no result back; other jobs that were retried can be canceled."""
    changed = ChangedAnswer(FEW, [], completed=FEW[:1])
    (line,) = bulk._undo(ACTIONS["retry"], changed, {})
    assert line == f"to undo: pulse ctl jobs cancel {UUID(bytes=FEW[1])}"
    assert list(bulk._undo(ACTIONS["retry"], ChangedAnswer(FEW, [], completed=FEW), {})) == []


def test_many_are_undone_by_what_chose_them() -> None:
    """Unless that no longer does, such as a status; it is said what else it chooses now."""
    chosen = {"topic": "t", "status": ["PENDING"], "worker": "w"}
    retry = "to undo: pulse ctl jobs retry --status CANCELED --topic t  (also those that were canceled before)"
    assert undo("cancel", IDS, [], **chosen) == [retry]
    cancel = "to undo: pulse ctl jobs cancel --topic t  (also others that wait or run; --dry-run counts them)"
    assert undo("retry", IDS, [], **chosen) == [cancel]
    assert undo("cancel", IDS, [], worker="w") == []
    groups = [(one, f"t{number}", number) for number, one in enumerate(IDS)]
    assert undo("change", IDS, groups)[-1] == "and 10 more topics and priorities before"
    assert undo("change", IDS, [(one, "t", 5) for one in IDS]) == ["before, 30 jobs had: --to-topic t --priority 5"]
