"""What people are woken for, all at once in one running system: each tool says the same, and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import pulse
from pulse.ops.doctor.checks import CHECKS
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import SHORT_LEASE, Pool, Whole, place
from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]

SETTINGS: Final = {**SHORT_LEASE, "PULSE_OBEY_S": "0.5", "PULSE_METRICS": "127.0.0.1:0"}
# As if two minutes had gone by.
LEFT: Final = "UPDATE pulse.hosts SET seen_at = seen_at - interval '2 min' WHERE host = 'beta'"
OTHERS: Final = "DO $$ BEGIN FOR i IN 1..100000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
Words = Sequence[str]


# What goes wrong -> where the dashboard is to say what; the page of a job tells what `jobs why` tells.
CAUSES: Final[Mapping[str, Mapping[str, Words]]] = {
    "poison": {
        "/": ["handler 'die' of topic 'poison': 3 crashes", "died: SIGKILL", "pulse ctl jobs get {poison}"],
        "/dead": ["handler 'die' of topic 'poison': 3 crashes", "pulse ctl jobs get {poison}"],
        "/jobs/{poison}": ["a dead letter", "It has killed 3 workers", "attempt 3", "worker process died: SIGKILL"],
    },
    "snapshot": {
        "/": ["session {holder} (", "nightly report) has been idle in", "SELECT pg_terminate_backend({holder});"],
        "/actors": ["session {holder} (", "SELECT pg_terminate_backend({holder});"],
        "/jobs/{snapshot}": ["The database is held back", "nightly report", "SELECT pg_terminate_backend({holder});"],
    },
    "paused": {
        "/": ["topic 'letters' was paused", "by uid {uid}", "the printer burns",
              "pulse ctl dispatch resume --topic letters"],
        "/topics": ["letters paused", "by uid {uid}", "the printer burns", "Resume"],
        "/jobs/{paused}": ['Topic "letters" has been paused since', "by uid {uid}", "the printer burns",
                           "pulse ctl dispatch resume --topic letters"],
    },
    "host": {
        "/": ["host beta was last seen", "ago, and holds 1 job, of worker", "Is the machine up?"],
        "/workers": ["host beta was last seen"],
        "/jobs/{host}": ["of another host, beta", "That host is gone: it was last seen", "Is that machine up?"],
        "/jobs/{lapsed}": ["lease_expired", "of host beta (which was last seen", "It is tried again"],
    },
    "frozen": {
        "/": ["(pid {frozen_pid}) is stopped (SIGSTOP)", "kill -CONT {frozen_pid}"],
        "/workers": ["(pid {frozen_pid}) is stopped (SIGSTOP)", "kill -CONT {frozen_pid}"],
        "/jobs/{frozen}": ["that process is stopped (SIGSTOP)", "kill -CONT {frozen_pid} lets it go on"],
    },
    "hung": {
        "/": ["(pid {hung_pid}) hangs: a handler blocks its event loop", "pulse ctl jobs stack {hung}",
              "handler 'deaf' of topic 'slow': 1 timeout"],
        "/workers": ["hangs, silent for", "(pid {hung_pid}) hangs: a handler blocks its event loop"],
        "/jobs/{hung}": ["a handler there blocks the event loop", "Called there: 1 clog", "Where is it now?"],
        "/jobs/{hung}/stack": ["in clog", "system_app.py"],
        "/jobs/{late}": ["timed out after 1 s", "its process was killed", "where it was"],
        "/jobs/{lock}": ["No limit ends it if it hangs, neither timeout_s nor stall_s", "Where is it now?"],
    },
    "unserved": {
        "/": ["topic 'nowhere': a job has been due for", "pulse worker MODULE:APP --topic TOPIC"],
        "/topics": ["topic 'nowhere': a job has been due for"],
        "/jobs/{unserved}": ['No worker that is connected to this server serves topic "nowhere"'],
    },
    "unhandled": {
        "/": ["topic 'poison': 1 job named 'dye'", "handlers with a similar name: 'die'"],
        "/jobs": ["topic 'poison': 1 job named 'dye'"],
    },
}  # fmt: skip
SEVERITY: Final = {
    "crashes": "wrong", "dead-letters": "warning", "gate": "warning", "hosts": "wrong", "hung": "warning",
    "leases": "wrong", "running": "warning", "topics": "wrong", "unhandled": "wrong", "workers": "wrong",
    "xmin": "warning",
}  # fmt: skip
LATE: Final = "UPDATE pulse.jobs SET next_run_at = next_run_at - interval '1 min' WHERE id = $1"
LONG: Final = "UPDATE pulse.jobs SET started_at = started_at - interval '20 min' WHERE id = $1"
ALERT: Final = re.compile(r'expr: pulse_finding\{severity="(\w+)"\}')


class Setting:
    """The system, and what is wrong with it: ids of jobs and pids of processes, by name."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.known: dict[str, object] = {"uid": os.getuid()}

    def words(self, words: Words) -> list[str]:
        return [word.format(**self.known) for word in words]

    def run(self, *words: str) -> str:
        return flat(self.whole.command(*words).stdout)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def setting(newest_server: Postgres) -> Iterator[Setting]:
    """Two hosts, and all goes wrong at once. SQL is asked here alone: the browser's loop lets no other run besides."""
    with contextlib.ExitStack() as stack:
        dsn = stack.enter_context(newest_server.database())
        alpha = stack.enter_context(place(dsn, **SETTINGS, PULSE_HOST_ID="alpha"))
        beta = stack.enter_context(place(dsn, **SETTINGS, PULSE_HOST_ID="beta"))
        alpha.start()
        with pulse.Client(alpha.path) as client:
            client.topics_set("far", lease_s=600)  # its leases outlast this test, as those of 'ice' do
            client.topics_set("ice", lease_s=600)
            client.topics_set("near", backoff="fixed:600")
            client.topics_set("slow", backoff="fixed:600")
        beta.start()
        pools = start_pools(alpha, beta)
        made = Setting(alpha)
        with pulse.Client(alpha.path) as client:
            go_wrong(made, client, beta, pools)
            pin(stack, dsn, made)
            settle(made, client)
        yield made
        for pool in pools.values():
            pool.bury()  # a stopped one would not hear that it is to end


def start_pools(alpha: Whole, beta: Whole) -> dict[str, Pool]:
    def pool(whole: Whole, processes: int, places: int, *topics: str) -> Pool:
        served = [word for topic in topics for word in ("--topic", topic)]
        return whole.pool("--processes", str(processes), "--concurrency", str(places), *served, wait=False)

    pools = {
        "well": pool(alpha, 1, 2, "poison", "letters"), "ice": pool(alpha, 1, 1, "ice"),
        "slow": pool(alpha, 3, 1, "slow"), "beta": pool(beta, 1, 2, "far", "near"),
    }  # fmt: skip
    sizes = {alpha: 5, beta: 1}
    for whole, size in sizes.items():
        until(lambda whole=whole, size=size: len(whole.connected()) == size, "the pools connect", 30.0)  # type: ignore[misc]
    return pools


def go_wrong(made: Setting, client: pulse.Client, beta: Whole, pools: Mapping[str, Pool]) -> None:
    """All but the snapshot, which would outlast what follows."""
    whole, gate = made.whole, str(made.whole.gate("never"))
    job = {
        "poison": client.submit("die", {"how": signal.SIGKILL}, topic="poison"),
        "frozen": client.submit("hold", {"gate": gate}, topic="ice"),
        "hung": client.submit("clog", {"gate": gate}, topic="slow"),
        "lock": client.submit("deaf", {"gate": gate}, topic="slow"),
        "late": client.submit("deaf", {"gate": gate}, topic="slow", timeout_s=1.0),
        "host": client.submit("hold", {"gate": gate}, topic="far"),
        "lapsed": client.submit("hold", {"gate": gate}, topic="near"),
    }
    for name in ("host", "lapsed"):
        beta.wait_entry(job[name])
    beta.kill()
    pools["beta"].bury()
    whole.rows(LEFT)
    frozen = whole.wait_entry(job["frozen"]).pid
    os.kill(frozen, signal.SIGSTOP)
    client.pause("letters", "the printer burns")
    job["paused"] = client.submit("mark", {}, topic="letters")
    client.submit("mark", {}, topic="letters")
    job["unserved"] = client.submit("mark", {}, topic="nowhere")
    whole.rows(LATE, job["unserved"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pulse.UnhandledNameWarning)
        job["unhandled"] = client.submit("dye", {}, topic="poison")
    whole.wait_entry(job["lock"])
    whole.rows(LONG, job["lock"])
    hung = whole.wait_entry(job["hung"]).pid
    job["snapshot"] = client.submit("mark", {}, topic="nowhere", delay_s=3600)
    made.known |= {name: str(one) for name, one in job.items()}
    made.known |= {"frozen_pid": frozen, "hung_pid": hung}


def pin(stack: contextlib.ExitStack, dsn: str, made: Setting) -> None:
    """A transaction that somebody forgot, and many of others since."""
    runner = stack.enter_context(asyncio.Runner())
    session = runner.run(asyncpg.connect(dsn, server_settings={"application_name": "nightly report"}))
    stack.callback(lambda: runner.run(session.close(timeout=5)))
    runner.run(session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs"))
    made.known["holder"] = session.get_server_pid()
    made.whole.rows(OTHERS)


def settle(made: Setting, client: pulse.Client) -> None:
    for name, status in (("poison", "DEAD_LETTERED"), ("late", "RETRYING"), ("lapsed", "RETRYING")):
        wait_status(client, str(made.known[name]), status)

    def conditions() -> dict[object, object]:
        return {worker["pid"]: worker["condition"] for worker in made.whole.connected()}

    wanted = {made.known["frozen_pid"]: "stopped", made.known["hung_pid"]: "blocked"}
    until(lambda: wanted.items() <= conditions().items(), "the dispatcher sees who is silent", 15.0)


def wait_status(client: pulse.Client, job: str, status: str) -> None:
    until(lambda: client.get(job).status == status, f"{job} is {status}", 30.0)


@pytest.fixture(scope="module")
def whole(setting: Setting) -> Whole:
    return setting.whole


def test_all_tools_say_the_same(setting: Setting, visit: Callable[..., Page]) -> None:
    """Status, doctor, metrics, alerts and the overview: of all that the server has in hand, none more, none less."""
    whole = setting.whole
    mine = {check for check, one in CHECKS.items() if not one.everywhere}

    def status() -> dict[str, str]:
        said = whole.command("ctl", "status", "--json").stdout  # nothing: the server did not answer in time
        told = json.loads(said or '{"findings": []}')["findings"]
        assert all(one["text"] and one["do"] for one in told)
        return {one["id"]: one["severity"] for one in told}

    until(lambda: SEVERITY.items() <= status().items(), "the server finds it all", 30.0)
    found = status()
    assert whole.command("ctl", "status").returncode == 1
    told = json.loads(whole.command("doctor", "--json").stdout)["findings"]
    assert {one["id"]: one["severity"] for one in told if one["id"] not in mine} == found
    (*_, served) = whole.log("metrics_served")
    samples = scrape(f"http://{served['address']}/metrics")
    assert {one.labels["check"]: one.labels["severity"] for one in samples} == found
    rules = (Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8")
    assert set(ALERT.findall(rules)) == {"wrong", "warning"} == set(found.values())
    page = visit()
    page.goto("/")
    titles = page.locator(".findings li > b").all_inner_texts()
    assert sorted(titles) == sorted(f"{severity}: {CHECKS[check].title}" for check, severity in found.items())
    badge = page.locator(".health").inner_text()
    assert badge == f"{[*found.values()].count('wrong')} wrong, {[*found.values()].count('warning')} warnings"


def scrape(address: str) -> list[Sample]:
    with urllib.request.urlopen(address, timeout=5.0) as answer:  # noqa: S310 - loopback
        families = text_string_to_metric_families(answer.read().decode())
    return [one for family in families for one in family.samples if one.name == "pulse_finding"]


def test_status_and_workers(setting: Setting) -> None:
    """The first command of the night says all that the overview says, with what to do."""
    said = setting.run("ctl", "status")
    for cause in CAUSES:
        assert [word for word in setting.words(CAUSES[cause]["/"]) if word not in said] == [], said
    workers = setting.run("ctl", "workers")
    assert re.search(r"1/1 stopped \(SIGSTOP\)", workers), workers
    assert re.search(r"1/1 hangs\b", workers), workers


@pytest.mark.parametrize("cause", CAUSES)
def test_dashboard(setting: Setting, visit: Callable[..., Page], picture: Callable[..., None], cause: str) -> None:
    page = visit()
    for number, (path, words) in enumerate(CAUSES[cause].items()):
        page.goto(path.format(**setting.known))
        wait_words(page, [word for word in setting.words(words) if not word.startswith("pulse ctl ")])  # links there
        picture(page, f"incident-{cause}-{number}", full_page=True)


def wait_words(page: Page, words: Words) -> None:
    """Wait until the page says all of *words*: what it shows is some seconds old."""
    said = ""

    def is_said() -> bool:
        nonlocal said
        if said:
            page.reload()
        said = flat(page.locator("main").inner_text())
        return all(word in said for word in words)

    try:
        until(is_said, "")
    except AssertionError:
        raise AssertionError(f"{page.url} lacks {[word for word in words if word not in said]}: {said}") from None
