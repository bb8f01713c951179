"""Two supervisors with workers on one database, each with a schema of its own; clients and commands go by topic."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import httpx2
import psycopg
import pytest

import pulse
from pulse.errors import NobodyAnswersError, NotFoundError
from pulse.routes import Queue
from tests.support.commandline.warm import PULSE
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import APP, SHORT_LEASE, Whole, place, run
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

SOON_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Shop:
    """Two queues, the config file that has them, and a third one without a server."""

    orders: Whole
    mail: Whole
    file: Path

    @property
    def routes(self) -> pulse.Routes:
        return pulse.load_routes(self.file)

    def ctl(self, *words: str, file: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run(PULSE, ["ctl", *words], {**self.mail.env, **elsewhere(file or self.file)})


@pytest.fixture(scope="module")
def shop(newest_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with newest_server.database(installed=False) as dsn, contextlib.ExitStack() as stack:
        settings = {**SHORT_LEASE, "PULSE_DSN": ""}
        made = [stack.enter_context(place(dsn, **settings, PULSE_SCHEMA=schema)) for schema in ("orders", "mail")]
        file = tmp_path_factory.mktemp("shop") / "pulse.toml"
        file.write_text(
            f'[queues.orders]\nserver = "{made[0].path}"\nschema = "orders"\n'
            f'[queues.mail]\nserver = "unix://{made[1].path}"\nschema = "mail"\n'
            '[queues.gone]\nserver = "gone.sock"\n'
            '[routes]\n"mail.*" = "mail"\npay = "orders"\nlost = "gone"\n',
            "utf-8",
        )
        for whole, queue, topic in zip(made, ("orders", "mail"), ("pay", "mail.welcome"), strict=True):
            whole.start()
            whole.pool("--queue", queue, "--topic", topic, env=elsewhere(file))
        orders, mail = made
        yield Shop(orders, mail, file)


def elsewhere(file: Path) -> dict[str, str]:
    """The environment of a program that only the config file tells of the servers."""
    return {"PULSE_CONFIG": str(file), "PULSE_RUNTIME_DIR": ""}


def homes(shop: Shop, job: UUID) -> list[str]:
    """The schemas that have a job of this id."""
    return [one for one in ("orders", "mail") if shop.mail.rows(f"SELECT 1 FROM {one}.jobs WHERE id = $1", job)]


def test_jobs_go_to_the_queue_of_their_topic(shop: Shop) -> None:
    """One by one and many at once, in order; an id leads to the queue that has it."""
    with pulse.Queues(shop.routes, timeout_s=SOON_S) as queues:
        alone = queues.submit("mark", {"n": 1}, topic="mail.welcome")
        assert (alone.is_new, queues.wait(alone, SOON_S).result, homes(shop, alone)) == (True, {"n": 1}, ["mail"])
        topics = ["pay", "mail.welcome", "pay"]
        ids = queues.submit_many({"name": "mark", "args": {"n": n}, "topic": one} for n, one in enumerate(topics))
        assert [homes(shop, job) for job in ids] == [["orders"], ["mail"], ["orders"]]
        assert [queues.wait(str(job), SOON_S).result for job in ids] == [{"n": n} for n in range(3)]
        assert queues.find(ids[1].bytes) is queues.of("mail.news") is queues.named("mail")
        assert queues.named("orders").status()["database"]["schema"] == "orders"  # type: ignore[index,call-overload]


async def test_async(shop: Shop) -> None:
    async with pulse.AsyncQueues(shop.routes, timeout_s=SOON_S) as queues:
        job = await queues.submit("mark", {"n": 5}, topic="pay")
        assert (await queues.wait(job, SOON_S)).result == {"n": 5}
        assert (await queues.get(job)).topic == "pay"
        assert await queues.find(job) is queues.of("pay")


def test_a_queue_that_is_down_keeps_nobody_from_the_others(shop: Shop) -> None:
    """A submit to several says what was submitted; a job that no queue has may be in the one that is down."""
    with pulse.Queues(shop.routes) as queues:
        with pytest.raises(
            NobodyAnswersError,
            match=r"^queue gone: .*gone\.sock .*; queue gone may have its .*; submitted before: 2 of queue orders$",
        ):
            queues.submit_many({"name": "mark", "args": {"n": 1}, "topic": one} for one in ("pay", "lost", "pay"))
        job = queues.submit("mark", {"n": 6}, topic="pay")
        assert queues.wait(job, SOON_S).result == {"n": 6}
        with pytest.raises(NobodyAnswersError, match=f"that answer have no job {UUID(int=9)}; queue gone: no"):
            queues.get(UUID(int=9))
    there = {name: queue for name, queue in shop.routes.queues.items() if name != "gone"}
    with (
        pulse.Queues(pulse.Routes(there, {})) as queues,
        pytest.raises(NotFoundError, match=f"^there is no job {UUID(int=9)} in the queues orders, mail$"),
    ):
        queues.get(UUID(int=9))


def test_in_a_transaction_of_the_callers_own(shop: Shop) -> None:
    """Two schemas of one database: there the transaction is what makes it all or none."""
    with psycopg.connect(shop.mail.dsn) as connection:
        ids = [
            pulse.sql.submit(connection, "mark", {"n": 7}, topic=topic, schema=shop.routes.of(topic).schema)
            for topic in ("pay", "mail.welcome")
        ]
    assert [homes(shop, job) for job in ids] == [["orders"], ["mail"]]
    with pulse.Queues(shop.routes) as queues:
        assert [queues.wait(job, SOON_S).result for job in ids] == [{"n": 7}] * 2


def test_commands_go_by_topic_or_id(shop: Shop) -> None:
    """Nothing else says which queue is meant, but for its name; a server that is named goes before the file."""
    done = shop.ctl("submit", "mark", '{"n": 8}', "--topic", "mail.welcome")
    job = UUID(done.stdout.strip())
    with pulse.Queues(shop.routes) as queues:
        queues.wait(job, SOON_S)
    assert homes(shop, job) == ["mail"]
    for words in (["jobs", "get", str(job)], ["--queue", "mail", "jobs", "get", str(job)[:28]]):
        assert json.loads(shop.ctl(*words, "--json").stdout)["topic"] == "mail.welcome"
    listed = json.loads(shop.ctl("jobs", "list", "--topic", "mail.welcome", "--json").stdout)["jobs"]
    assert str(job) in {row["id"] for row in listed}
    assert json.loads(shop.ctl("topics", "get", "pay", "--json").stdout)["topic"] == "pay"
    assert shop.ctl("jobs", "retry", str(job), "--yes").returncode == 0
    for words in (["status"], ["jobs", "list"], ["schedules", "list"]):
        done = shop.ctl(*words)
        assert done.returncode == 1
        assert "pulse ctl --queue NAME (orders, mail, gone)" in done.stderr, done
    assert json.loads(shop.ctl("--queue", "mail", "status", "--json").stdout)["database"]["schema"] == "mail"
    assert shop.mail.command("ctl", "--socket", str(shop.orders.path), "ping").returncode == 0


def test_commands_refuse_what_two_queues_would_share(shop: Shop) -> None:
    with pulse.Queues(shop.routes) as queues:
        job = str(queues.submit("mark", {"n": 1}, topic="pay", delay_s=3600))
    for words, said in (
        (["jobs", "change", job, "--to-topic", "mail.welcome"], "topic 'mail.welcome' belongs to queue mail"),
        (["--queue", "orders", "jobs", "change", job, "--to-topic", "mail.welcome"], "topic 'mail.welcome' belongs to"),
        (["--queue", "orders", "submit", "mark", "--topic", "mail.welcome"], "a topic of queue orders is allowed"),
        (["--queue", "orders", "submit", "mark"], "a job goes to the queue of its topic: add --topic"),
        (
            ["submit", "mark"],
            "the config file has queues, and a job goes to the queue of its topic: add --topic",
        ),
        (
            ["jobs", "get", job[:28]],
            f"the queues that answer have one job {job[:28]}, and the others may, too".replace("-", ""),
        ),
        (["submit", "mark", "--topic", "none"], "topic 'none' has no route: allowed are mail.*, pay, lost"),
        (["jobs", "get", str(UUID(int=9))], "the queues that answer have no job"),
        (["--queue", "post", "status"], "there is no queue 'post': allowed are orders, mail, gone"),
        (["--queue", "mail", "--socket", "/x", "status"], "--socket and --queue name two servers: one is allowed"),
    ):
        done = shop.ctl(*words)
        assert done.returncode != 0
        assert said in done.stderr, done
    assert shop.ctl("jobs", "cancel", job, "--yes").returncode == 0
    same = str(UUID(int=1 << 100))
    for queue, topic in (("orders", "pay"), ("mail", "mail.welcome")):
        assert shop.ctl("submit", "mark", "--id", same, "--topic", topic, "--delay", "1h").returncode == 0
        assert json.loads(shop.ctl("--queue", queue, "jobs", "get", same, "--json").stdout)["topic"] == topic
    assert (
        f"{UUID(same).hex} may mean jobs of several queues; name one with --queue: orders, mail"
        in shop.ctl("jobs", "get", same).stderr
    )


def test_all_ids_are_of_one_queue(shop: Shop, tmp_path: Path) -> None:
    """The first alone does not say which; what it may mean in a queue that does not answer, counts, too."""
    file = tmp_path / "pulse.toml"
    file.write_text(
        shop.file.read_text("utf-8").replace('[queues.gone]\nserver = "gone.sock"\n', "").replace('lost = "gone"\n', "")
    )
    with pulse.Queues(shop.routes) as queues:
        mine = [str(queues.submit("mark", {"n": 1}, topic="pay", delay_s=3600)) for _ in range(2)]
        other = str(queues.submit("mark", {"n": 1}, topic="mail.welcome", delay_s=3600))
    for words in ([mine[0], other], [other[:30], mine[0][:30]]):
        done = shop.ctl("jobs", "cancel", *words, "--yes", file=file)
        assert (done.returncode, "jobs of several queues are meant: " in done.stderr) == (1, True), done
    done = shop.ctl("jobs", "cancel", mine[0], str(UUID(int=9)), "--yes", file=file)
    assert f"no job in the queues orders, mail has an id that begins with {UUID(int=9).hex}" in done.stderr
    assert shop.ctl("jobs", "cancel", mine[0], mine[1][:30], "--yes", file=file).returncode == 0
    assert shop.ctl("jobs", "get", other[:30], file=file).returncode == 0


def test_what_a_pool_tells_its_handlers_leads_nowhere_else(shop: Shop) -> None:
    """They run `pulse ctl submit` as well: a job of another queue would wait for ever in theirs."""
    for name, value in (("PULSE_CONNECT", str(shop.orders.path)), ("PULSE_RUNTIME_DIR", str(shop.orders.runtime_dir))):
        env = {**shop.orders.env, **elsewhere(shop.file), name: value}
        words = ["ctl", "submit", "mark", '{"n": 1}', "--topic"]
        done = run(PULSE, [*words, "mail.welcome"], env)
        assert (done.returncode, done.stdout) == (1, "")
        assert "topic 'mail.welcome' belongs to queue mail: a topic of queue orders is allowed" in done.stderr
        done = run(PULSE, words[:-1], env)
        assert (done.returncode, "a job goes to the queue of its topic: add --topic" in done.stderr) == (2, True), done
        job = UUID(run(PULSE, [*words, "pay"], env).stdout.strip())
        assert homes(shop, job) == ["orders"]
        job = UUID(run(PULSE, ["ctl", "--queue", "mail", *words[1:], "mail.welcome"], env).stdout.strip())
        assert homes(shop, job) == ["mail"]


def test_a_topic_leads_to_all_that_is_looked_for(shop: Shop, tmp_path: Path) -> None:
    """The schedule of the jobs, and the pause that is ended; the directory in the file is another server's."""
    file = tmp_path / "pulse.toml"
    file.write_text(f'runtime_dir = "{shop.orders.runtime_dir}"\n{shop.file.read_text("utf-8")}', "utf-8")
    of_topic = ["--topic", "mail.welcome"]
    made = json.loads(shop.ctl("schedules", "create", "mark", "--every", "1h", *of_topic, "--json").stdout)["id"]
    job = json.loads(shop.ctl("--queue", "mail", "schedules", "trigger", made, "--json").stdout)["id"]
    for one in (shop.file, file):
        listed = shop.ctl("jobs", "list", *of_topic, "--schedule", made[:30], "--json", file=one)
        assert [row["id"] for row in json.loads(listed.stdout)["jobs"]] == [job]
        assert "mail.welcome was not paused" in shop.ctl("dispatch", "resume", *of_topic, file=one).stderr
        shop.ctl("dispatch", "pause", *of_topic, file=one)
        assert shop.ctl("dispatch", "resume", *of_topic, file=one).stderr == ""
    assert shop.ctl("--queue", "mail", "schedules", "delete", made).returncode == 0
    made = json.loads(shop.ctl("schedules", "create", "mark", "--every", "1h", "--topic", "pay", "--json").stdout)["id"]
    done = shop.ctl("schedules", "update", made, *of_topic, file=file)
    assert "belongs to queue mail: a topic of queue orders is allowed" in done.stderr
    assert shop.ctl("schedules", "delete", made, file=file).returncode == 0


def test_a_schedule_stays_in_its_queue(shop: Shop) -> None:
    """Its new topic does not lead to it, and has to be one of its queue."""
    words = ["schedules", "create", "mark", "--every", "1h", "--topic"]
    made = json.loads(shop.ctl(*words, "mail.welcome", "--json").stdout)["id"]
    assert "belongs to queue mail: a topic of queue orders" in shop.ctl("--queue", "orders", *words, "mail.a").stderr
    update = ["schedules", "update", made, "--topic"]
    assert "pulse ctl --queue NAME (orders, mail, gone)" in shop.ctl(*update, "pay").stderr
    assert "'pay' belongs to queue orders: a topic of queue mail" in shop.ctl("--queue", "mail", *update, "pay").stderr
    done = shop.ctl("--queue", "mail", *update, "mail.news", "--json")
    assert json.loads(done.stdout)["topic"] == "mail.news"
    assert shop.ctl("--queue", "mail", "schedules", "delete", made).returncode == 0


def test_queues_that_cannot_be_asked(shop: Shop, tmp_path: Path) -> None:
    """Whatever the reason, the others are asked; and the time that this takes is part of that for the job."""
    where = tmp_path / "frozen.sock"
    bad = pulse.Routes({"bad": Queue("bad", str(tmp_path)), **shop.routes.queues}, shop.routes.patterns)
    frozen = pulse.Routes({"frozen": Queue("frozen", str(where)), **shop.routes.queues}, shop.routes.patterns)
    file = tmp_path / "pulse.toml"
    file.write_text(f'queues.bad.server = "{tmp_path}"\n{shop.file.read_text("utf-8")}', "utf-8")
    with socket.socket(socket.AF_UNIX) as listening, pulse.Queues(bad) as queues:
        listening.bind(str(where))
        listening.listen()
        job = queues.submit("mark", {"n": 1}, topic="pay", delay_s=3600)
        assert queues.get(job).topic == "pay"
        with pytest.raises(NobodyAnswersError, match=r"queue bad: socket .* is a directory"):
            queues.get(UUID(int=9))
        assert shop.ctl("jobs", "get", str(job), file=file).returncode == 0
        assert "queue bad: socket" in shop.ctl("jobs", "get", str(UUID(int=9)), file=file).stderr
        with pulse.Queues(frozen, timeout_s=3.0) as patient:
            began_s = time.monotonic()
            with pytest.raises(TimeoutError):
                patient.wait(job, timeout_s=3.0)
            assert time.monotonic() - began_s < 5.5
    assert shop.ctl("jobs", "cancel", str(job), "--yes").returncode == 0


def test_a_pool_without_a_topic_of_its_queue(shop: Shop) -> None:
    """It ends with one line; another start would not help."""
    pool = shop.mail.pool("--queue", "mail", env=elsewhere(shop.file), wait=False)
    assert pool.process.wait(SOON_S) != 0
    assert (
        f"pulse: {APP} has no topic of queue mail: it has default, trio; topics of the queue are mail.*, and --topic"
        " names others" in pool.said
    )
    pool = shop.mail.pool("--queue", "post", env=elsewhere(shop.file), wait=False)
    assert pool.process.wait(SOON_S) != 0
    assert "there is no queue 'post': allowed are orders, mail, gone" in pool.said


def test_a_pool_works_for_the_queue_that_is_named(shop: Shop) -> None:
    """It is not guessed from a server."""
    for words, env in ((), {}), (("--socket", str(shop.mail.path)), {}), ((), {"PULSE_CONNECT": str(shop.mail.path)}):
        pool = shop.mail.pool(*words, env={**elsewhere(shop.file), **env}, wait=False)
        assert pool.process.wait(SOON_S) == 1
        assert pool.said.splitlines()[-1] == (
            "pulse: the config file has queues: --queue NAME is needed (orders, mail, gone)"
        )


@pytest.mark.parametrize("later", [None, "what is that?"])
def test_the_config_file_is_read_when_a_pool_starts(shop: Shop, tmp_path: Path, later: str | None) -> None:
    """Processes that it starts afterwards work for the same queue, whatever the file says by then."""
    file = tmp_path / "pulse.toml"
    file.write_text(f'[queues.mail]\nserver = "{shop.mail.path}"\n[routes]\ndefault = "mail"\n', "utf-8")
    pool = shop.mail.pool("--queue", "mail", env=elsewhere(file))
    (before,) = pool.workers()
    if later is None:
        file.unlink()
    else:
        file.write_text(later, "utf-8")
    os.kill(before, signal.SIGKILL)
    until(lambda: set(pool.workers()) - {before} and shop.mail.is_connected(pool), "another process works", SOON_S)
    (after,) = pool.workers()
    (row,) = (one for one in shop.mail.connected() if one["pid"] == after)
    assert row["topics"] == ["default"]
    assert "topics_left_out" in pool.said
    assert '"without_route": ["trio"]' in pool.said


def test_thousands_of_routes(shop: Shop, tmp_path: Path) -> None:
    """One for each tenant: more than a command line holds."""
    file = tmp_path / "pulse.toml"
    routes = "".join(f'"tenant-{number:05}.*" = "mail"\n' for number in range(6000))
    file.write_text(f'[queues.mail]\nserver = "{shop.mail.path}"\n[routes]\n{routes}default = "mail"\n', "utf-8")
    pool = shop.mail.pool("--queue", "mail", env=elsewhere(file))
    with pulse.Queues(pulse.load_routes(file)) as queues:
        apart = queues.submit("shout-apart", {"lines": 1}, topic="default")
        assert queues.wait(apart, SOON_S).status == "COMPLETED"
    assert pool.stop() == 0


def test_the_list_of_queues(shop: Shop) -> None:
    done = shop.ctl("queues")
    head, orders, mail, gone = done.stdout.splitlines()
    assert head.split()[:4] == ["queue", "topics", "waiting", "running"]
    assert (orders.split()[:3], mail.split()[:2]) == (["orders", "pay", orders.split()[2]], ["mail", "mail.*"])
    assert (gone.split()[:2], "nobody answers" in gone, done.returncode) == (["gone", "lost"], True, 1)
    rows = json.loads(shop.ctl("queues", "--json").stdout)["queues"]
    assert [(row["queue"], row["error"] is None, row["topics"]) for row in rows] == [
        ("orders", True, ["pay"]), ("mail", True, ["mail.*"]), ("gone", False, ["lost"]),
    ]  # fmt: skip


@pytest.mark.parametrize("is_named", [True, False])
def test_the_dashboard_of_a_queue(shop: Shop, *, is_named: bool) -> None:
    """It shows the jobs of its queue, and knows the topics of that, also if the environment names the server."""
    with pulse.Queues(shop.routes) as queues:
        job = queues.submit("mark", {"n": 1}, topic="pay", delay_s=3600)
    where = shop.orders.directory / "ui.sock"
    named, env = (["--queue", "orders"], {}) if is_named else ([], {"PULSE_CONNECT": str(shop.orders.path)})
    words = [sys.executable, "-m", PULSE, "ui", *named, "--listen", f"unix:{where}"]
    process = subprocess.Popen(words, env={**shop.orders.env, **elsewhere(shop.file), **env}, stdin=subprocess.DEVNULL)
    try:
        until(lambda: where.exists() or process.poll() is not None, "it listens", SOON_S)
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(where)), base_url="http://localhost") as browser:
            got = browser.get(f"/jobs/{job}", follow_redirects=True)
        assert (got.status_code, str(job) in got.text) == (200, True), got.text
        assert 'title="This queue">orders<' in got.text
    finally:
        process.terminate()
        assert process.wait(SOON_S) == 0
