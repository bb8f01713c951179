"""Operators change many jobs, by the command line on a real supervisor, and the audit notes it."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Mapping
from typing import Any, Final

import pytest

import pulse
from pulse.ops.bulk import ACTIONS, change_jobs, run_blocking
from pulse.protocol.answers import ChangedAnswer
from tests.support.commandline.cli import PULSE
from tests.support.commandline.tmux import Screen, screen
from tests.support.systems.site_kit import Site
from tests.support.systems.system import new_job
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

MANY: Final = 1500  # more than a request holds
LOTS: Final = 40_000
REFUSED: Final = 2


def test_many_jobs_there_and_back(site: Site) -> None:
    """Jobs are counted first, then canceled, retried, moved and deleted, in batches; each leaves its note."""
    topic = ("--topic", site.topic)
    site.client.submit(*(new_job(topic=site.topic, priority=number % 2) for number in range(MANY)))
    counted = site.told("jobs", "cancel", *topic, "--dry-run")
    assert counted["counts"] == [{"status": "PENDING", "topic": site.topic, "jobs": MANY}]
    assert len(counted["examples"]) == 3
    assert f"would cancel {MANY:,} jobs; nothing was done" in site.ctl("jobs", "cancel", *topic, "--dry-run")
    assert "--yes is required" in site.ctl("jobs", "cancel", *topic, code=REFUSED)
    assert len(site.listed("--status", "PENDING", "--limit", "1000")) == 1000

    assert site.ctl("jobs", "cancel", *topic, "--yes") == f"{MANY:,} jobs canceled\n"
    assert "nothing was done" in site.ctl("jobs", "delete", *topic, "--status", "COMPLETED", "--dry-run")
    done = site.told("jobs", "retry", *topic, "--yes")
    assert (len(done["done"]), done["refused"]) == (MANY, [])
    moved = f"{site.topic}-slow"
    assert f"{MANY:,} jobs changed" in site.ctl(
        "jobs", "change", *topic, "--to-topic", moved, "--priority", "7", "--yes"
    )
    assert site.listed() == []
    assert {job["priority"] for job in site.told("jobs", "list", "--topic", moved)["jobs"]} == {7}
    site.ctl("jobs", "cancel", "--topic", moved, "--yes")
    assert site.ctl("jobs", "delete", "--topic", moved, "--yes") == f"{MANY:,} jobs deleted\n"

    me = {"uid": os.getuid(), "user_name": pwd.getpwuid(os.getuid()).pw_name}
    for action in ("jobs.cancel", "jobs.retry", "jobs.change", "jobs.delete"):
        notes = [note for note in site.noted(action=action, **me) if site.topic in note["detail"]["matching"]]
        assert sum(note["jobs"] for note in notes) in {MANY, 2 * MANY}
        assert all(len(note["detail"]["ids"]) <= 100 for note in notes)


def test_children_that_were_canceled_with_their_parents(site: Site) -> None:
    """A batch finds them canceled by the one before, as was asked: only what somebody else had canceled is refused."""
    told: list[ChangedAnswer] = []
    with pulse.Client(site.whole.path) as client:
        parent, other = client.submit("n", topic=site.topic), client.submit("n", topic=site.topic)
        child = client.submit("n", after=[parent], topic=site.topic)
        client.cancel(other)

        async def ask(kind: str, body: Mapping[str, object]) -> Mapping[str, object]:
            return client.request(kind, body)

        batches = [[parent.bytes], [child.bytes, other.bytes]]
        run_blocking(change_jobs(ask, ACTIONS["cancel"], batches, {"matching": site.topic}, told.append))
        run_blocking(change_jobs(ask, ACTIONS["cancel"], [[child.bytes]], {}, told.append))
    assert [(one.done, [job for job, _ in one.refused]) for one in told] == [
        ([parent.bytes], []), ([child.bytes], [other.bytes]), ([], [child.bytes]),
    ]  # fmt: skip


def test_all_that_operators_do_is_noted(site: Site) -> None:
    for words in (("pause", "--reason", "a look"), ("resume",), ("resume",)):  # the second one finds it open
        site.told("dispatch", *words, "--topic", site.topic)
    site.ctl("topics", "set", site.topic, "--stall", "5")
    site.ctl("topics", "unset", site.topic)
    schedule = site.told("schedules", "create", "n", "--every", "3600", "--topic", site.topic)["id"]
    for command in ("pause", "resume", "trigger", "delete"):
        site.ctl("schedules", command, schedule)
    actions = [note["action"] for note in site.noted(topic=site.topic)]
    assert actions == ["schedules.create", "topics.unset", "topics.set", "dispatch.resume", "dispatch.pause"]
    assert [note["action"] for note in site.noted(schedule_id=schedule)] == [
        f"schedules.{command}" for command in ("delete", "trigger", "resume", "pause", "create")
    ]
    assert site.noted(action="dispatch.pause", topic=site.topic)[0]["detail"] == {"reason": "a look"}
    shown = site.ctl("audit", "--topic", site.topic, "--action", "dispatch.")
    assert "reason=a look" in shown
    assert len(shown.splitlines()) == 3


def test_for_whom_somebody_asks(site: Site) -> None:
    """The note has it beside the kernel's account, never instead, by the dispatcher and by the supervisor."""
    user = pwd.getpwuid(os.getuid()).pw_name
    with pulse.Client(site.whole.path, behalf="ann") as client:
        client.pause(site.topic)
        gate: Any = client.dispatch_status()
        assert gate["topics"][site.topic]["paused_by"] == f"uid {os.getuid()} ({user}) for ann"
        client.resume(site.topic)
    with pulse.Client(site.whole.path.with_name("supervisor.sock"), behalf="bob") as client:
        client.request("actors.restart", {"name": "scheduler"})
    until(lambda: site.noted(behalf="bob", action="actors.restart"), "a note of the restart")
    notes = [*site.noted(topic=site.topic, behalf="ann"), *site.noted(behalf="bob")]
    assert [note["action"] for note in notes] == ["dispatch.resume", "dispatch.pause", "actors.restart"]
    assert {(note["uid"], note["user_name"]) for note in notes} == {(os.getuid(), user)}
    assert f"ann by {user}" in site.ctl("audit", "--topic", site.topic)
    for bad in ("", "x" * 65, "a\nb", "\0"):
        with pytest.raises(pulse.PulseError, match="behalf"), pulse.Client(site.whole.path, behalf=bad) as client:
            client.ping()


def test_what_the_supervisor_was_asked(site: Site) -> None:
    """Restarts and drains are noted by an actor, over the bus; also its own restart."""
    for name in ("scheduler", "watchdog"):
        site.ctl("actors", "restart", name)
    site.ctl("drain")  # the watchdog has just begun to start, and hears nothing yet
    for name in ("scheduler", "watchdog"):
        until(lambda name=name: site.noted(action="actors.restart", detail={"name": name}), f"a note of {name}")  # type: ignore[misc]
    (note,) = until(lambda: site.noted(action="drain"), "a note of the drain")
    assert note["at"].endswith("Z")
    assert (note["uid"], note["detail"]) == (os.getuid(), {"all": False})


def _open(terminal: Screen, site: Site, *words: str) -> None:
    env = {**site.whole.env, "TERM": "xterm-256color"}
    terminal.start(shlex.join([*PULSE, "ctl", *words]), env, 120, 30)


def test_a_person_is_asked_first(site: Site) -> None:
    site.jobs(3)
    for words, question, answer, last in (
        (("cancel",), "cancel 3 jobs? [y/N]", "n", "nothing was done"),
        (("cancel",), "cancel 3 jobs? [y/N]", "y", "to undo: pulse ctl jobs retry"),
        (("delete", "--newer", "1h"), "This cannot be undone.", "y", "3 jobs deleted"),
    ):
        with screen() as terminal:
            _open(terminal, site, "jobs", *words, "--topic", site.topic)
            terminal.see(question)
            terminal.type(answer, "Enter")
            terminal.see(last)
    assert site.listed() == []


def test_a_person_is_asked_before_a_completed_job_runs_again(site: Site) -> None:
    """By id and by options; where nobody can be asked it runs again, and that is said."""
    ids = [*map(str, site.jobs(2))]
    site.whole.rows(
        "UPDATE pulse.jobs SET status = 'COMPLETED', completed_at = now(), attempts = 1, started_at = now() "
        "WHERE topic = $1",
        site.topic,
    )
    for words, question, answer, last in (
        (("retry", ids[0]), "1 job has completed: it runs again, and that cannot be undone.", "n", "nothing was done"),
        (("retry", ids[0]), "retry 1 job? [y/N]", "y", f"retried {ids[0]}, which had completed"),
        (("retry", "--topic", site.topic, "--status", "COMPLETED"), "it runs again, and that", "n", "nothing was done"),
    ):
        with screen() as terminal:
            _open(terminal, site, "jobs", *words)
            terminal.see(question)
            terminal.type(answer, "Enter")
            terminal.see(last)
            assert "to undo" not in terminal.text
    assert site.ctl("jobs", "retry", ids[1]) == f"retried {ids[1]}, which had completed\n"
    assert {one["status"] for one in site.listed()} == {"PENDING"}
    (run,) = site.told("jobs", "get", ids[1])["history"]
    assert (run["attempt"], run["outcome"]) == (1, "completed")


def test_ctrl_c_ends_it_between_two_batches(site: Site) -> None:
    """Finished batches stay done, and it says how many jobs it did not touch; the list can be watched until then."""
    columns = "id, topic, name, max_attempts"
    rows = "SELECT pulse.uuid7(), $1::text, 'n', 5 FROM generate_series(1, $2::int)"
    site.whole.rows(f"INSERT INTO pulse.jobs ({columns}) {rows}", site.topic, LOTS)
    with screen() as terminal:
        _open(terminal, site, "jobs", "list", "--topic", site.topic, "--watch", "0.2")
        terminal.see("PENDING")
        terminal.type("C-c")
        assert terminal.code() == 130
    with screen() as terminal:
        _open(terminal, site, "jobs", "cancel", "--topic", site.topic, "--yes")
        terminal.see(f"of {LOTS:,} jobs canceled")
        terminal.type("C-c")
        assert terminal.code() == 130
        assert "stopped; " in terminal.text
    canceled = site.whole.rows("SELECT count(*) FROM pulse.jobs WHERE topic = $1 AND status = 'CANCELED'", site.topic)
    assert 0 < canceled[0][0] < LOTS
    assert canceled[0][0] % 1000 == 0
