"""A whole system whose clients and workers alone have the key: the database never sees what is secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

import pulse
from pulse.encryption import KEYS, FernetCodec
from pulse.errors import BadRequestError
from pulse.security.codec import sealed_by
from tests.support.confidential import confidential, new_key
from tests.support.servers.postgres import Postgres
from tests.support.systems.site_kit import Site
from tests.support.systems.system_kit import END_S, SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

SECRET: Final = confidential("4242-4242-4242-4242", "card number")
APP: Final = "tests.support.apps.secret_app:app"
OLD, NEW = new_key(), new_key()


@pytest.fixture(scope="module")
def whole(newest_server: Postgres) -> Iterator[Whole]:
    with newest_server.database() as dsn, place(dsn, **SHORT_LEASE, PULSE_REDACT="refund:cents, card") as made:
        made.start()
        made.pool("--processes", "1", app=APP, env={KEYS: f"{NEW},{OLD}"})
        yield made


@pytest.mark.parametrize("name", ["charge", "charge-apart"])
def test_only_who_has_the_key_reads(site: Site, name: str) -> None:
    """Args, result, checkpoint, also of isolated jobs: handler and client can read them, nobody else."""
    whole = site.whole
    with pulse.Client(whole.path, codec=FernetCodec(OLD), timeout_s=END_S) as client:
        job = client.submit(name, {"card": SECRET})
        found = client.wait(job, timeout_s=END_S)
        assert found.args == {"card": SECRET}
        listed = {one.id: one.args for one in client.jobs(limit=100).jobs}
        assert listed[job] == {"card": SECRET}
        assert sealed_by(json.dumps(found.result)) == "fernet"  # with the new key, which this client has not
    with pulse.Client(whole.path, codec=FernetCodec(NEW, OLD), timeout_s=END_S) as client:
        assert client.get(job).result == {"charged": SECRET, "attempt": 2}
    row = whole.row_text(job)
    assert SECRET not in row
    assert row.count('"$pulse": "fernet"') == 3  # args, result, checkpoint
    shown = site.ctl("jobs", "get", str(job))
    assert "encrypted (fernet)" in shown
    for seen in (shown, site.ctl("jobs", "get", str(job), "--json"), whole.errors.read_text("utf-8")):
        assert SECRET not in seen
        assert OLD not in seen


def test_who_has_no_key(site: Site) -> None:
    whole = site.whole
    pool = whole.pool("--processes", "1", "--topic", "keyless", app="tests.support.apps.secret_app:keyless")
    jobs = whole.jobs()
    with pulse.Client(whole.path, codec=FernetCodec(NEW), timeout_s=END_S) as client:
        job = client.submit("keyless", {"card": SECRET}, topic="keyless", max_attempts=1)
        said = jobs.wait(job, "DEAD_LETTERED").last_error
        assert "UnreadableError: args are encrypted by codec 'fernet', and there is none here" in str(said)
        assert jobs.wait(jobs.submit("keyless", {"card": "plain"}, topic="keyless")).result == "plain"
        assert len(pool.workers()) == 1
        schedule = client.schedules_create("charge", {"card": SECRET}, every_s=3600)
        assert schedule.args == {"card": SECRET}
        fired = client.schedules_trigger(schedule.id)
        assert client.wait(fired, timeout_s=END_S).result == {"charged": SECRET, "attempt": 2}
    assert "encrypted (fernet)" in site.ctl("schedules", "get", str(schedule.id))
    assert not whole.rows("SELECT 1 FROM pulse.schedules s WHERE s::text LIKE $1", f"%{SECRET}%")
    until(lambda: "handler_failed" in pool.said, "the log of the failure", END_S)
    assert SECRET not in pool.said


def test_what_is_redacted_is_for_the_worker_alone(site: Site) -> None:
    """People see the mask; the handler gets the plain args, and nobody stores the mask instead."""
    whole, given = site.whole, {"card": SECRET, "cents": 5}
    with pulse.Client(whole.path, codec=FernetCodec(NEW), timeout_s=END_S) as sealing:
        plain = pulse.Client(whole.path, timeout_s=END_S)
        with plain:
            job = plain.submit("charge", {"card": SECRET})
            assert sealing.wait(job, timeout_s=END_S).result == {"charged": SECRET, "attempt": 2}
            waiting = plain.submit("nobody", given, topic="seen")
            every = plain.schedules_create("nobody", given, every_s=3600)
            seen = {"card": "***", "cents": 5}
            (listed,) = plain.jobs(topic="seen").jobs
            assert [plain.get(waiting).args, listed.args, every.args] == [seen, seen, seen]
            assert plain.schedules_update(every.id, priority=3).args == seen
            with pytest.raises(BadRequestError, match="where a value is hidden"):
                plain.schedules_update(every.id, args={**seen, "cents": 6})
            assert plain.schedules_update(every.id, args={**given, "cents": 6}).args == {**seen, "cents": 6}
            with pytest.raises(BadRequestError, match="are redacted: another name is allowed together with args"):
                plain.schedules_update(every.id, name="other")  # whose args might not be hidden
            assert plain.schedules_update(every.id, name="other", args=given).args == seen
            assert plain.schedules_update(every.id, name="other", priority=4).args == seen
    assert SECRET in whole.row_text(waiting)
    assert '"***"' in site.ctl("jobs", "get", str(waiting), "--json")
    for words in (("jobs", "get", str(waiting)), ("jobs", "list", "--json"), ("schedules", "list", "--json")):
        assert SECRET not in site.ctl(*words)


def test_nothing_is_hidden_from_handlers(site: Site) -> None:
    """What their parents returned, and what signals say; people see the mask."""
    told, seen = {"card": SECRET}, {"card": "***"}
    with pulse.Client(site.whole.path, timeout_s=END_S) as plain:
        parent = plain.submit("tells", told, topic="hidden")
        job = plain.submit("hears", topic="hidden", after=[parent])
        assert plain.signal(job, "approval", told)
        assert plain.get(job).signals[0].payload == seen
        site.whole.pool("--processes", "1", "--topic", "hidden", app="tests.support.apps.secret_app:keyless")
        assert plain.wait(parent, timeout_s=END_S).result == seen
        plain.wait(job, timeout_s=END_S)
    [row] = site.whole.rows("SELECT result FROM pulse.jobs WHERE id = $1", job)
    assert json.loads(row["result"]) == [told, told]
