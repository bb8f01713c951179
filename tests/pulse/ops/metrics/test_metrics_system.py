"""The Prometheus endpoint of a real system: over TCP and a Unix socket, with frozen, absent and hostile peers."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import pulse
from pulse.client.requests import NewJob
from pulse.ops.metrics.run import AGAIN_S
from tests.support.commandline.cli import environment
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import END_S, SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

ANSWER_S: Final = 4.0  # of which it promises two
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    """A supervisor with an endpoint on any free port of loopback, which ends with it, and a pool."""
    with server.database() as dsn, place(dsn, PULSE_METRICS="127.0.0.1:0", **SHORT_LEASE) as whole:
        whole.start()
        whole.pool()
        yield whole
        (service,) = whole.ask_supervisor("status")["services"]
        assert whole.stop() == 0
        assert not psutil.pid_exists(service["pid"])


def _port(whole: Whole) -> int:
    (*_, served) = until(lambda: whole.log("metrics_served"), "the endpoint is there")
    host, _, port = served["address"].rpartition(":")
    assert host == "127.0.0.1"
    return int(port)


def _page(whole: Whole, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", _port(whole), timeout=ANSWER_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def _samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def _scrape(whole: Whole) -> Samples:
    status, text = _page(whole)
    assert status == 200
    return _samples(text)


def _up(samples: Samples, part: str) -> float:
    return samples["pulse_up", frozenset({("part", part)})]


def test_a_scrape_of_a_system_at_work(whole: Whole) -> None:
    jobs = whole.jobs()
    jobs.client.submit_many([NewJob(name="mark", topic='odd "name"\n')] * 2)
    for job in jobs.client.submit_many([NewJob(name="mark")] * 5):
        jobs.wait(job)
    key = ("pulse_attempts_ended_total", frozenset({("outcome", "completed")}))
    ready = ("pulse_jobs", frozenset({("state", "ready")}))
    found = until(lambda: [one for one in [_scrape(whole)] if one.get(key, 0) >= 5 and one[ready]], "it is counted")
    samples = found[0]
    assert [_up(samples, part) for part in ("dispatcher", "supervisor", "database")] == [1, 1, 1]
    assert samples[ready] == 2
    assert samples["pulse_workers", frozenset()] == 1
    assert samples["pulse_actor_up", frozenset({("actor", "watchdog")})] == 1
    assert samples["pulse_run_seconds_count", frozenset()] == 5
    odd = [dict(labels)["topic"] for name, labels in samples if name == "pulse_topic_workers"]
    assert any(topic.startswith('odd "name"?#') for topic in odd)
    assert _page(whole, "/")[0] == 200
    assert _page(whole, "/etc/passwd") == (404, "")


def test_jobs_that_nobody_handles(whole: Whole) -> None:
    """Metrics, status, doctor and log tell of them within seconds, until they are gone."""
    with pytest.warns(pulse.UnhandledNameWarning, match="named shuot; similar: shout"):
        job = whole.jobs().client.submit("shuot", topic="default")
    key = ("pulse_finding", frozenset({("check", "unhandled"), ("severity", "wrong")}))
    until(lambda: key in _scrape(whole), "it is exported", 30.0)
    assert "topic 'default': 1 job named 'shuot'" in whole.command("ctl", "status").stdout
    told = json.loads(whole.command("doctor", "--json", "--dsn", whole.dsn).stdout)["checks"]
    (found,) = [one for one in told if one["name"] == "unhandled"]
    assert (found["state"], "1 job named 'shuot'" in found["text"]) == ("wrong", True)
    (logged,) = whole.log("job_unhandled")
    assert (logged["name"], logged["topic"], logged["level"]) == ("shuot", "default", "warning")
    whole.jobs().client.cancel(job)
    until(lambda: key not in _scrape(whole), "it is over", 30.0)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_wrong(whole: Whole) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=_page(whole)[1], capture_output=True, text=True, check=False,
        timeout=END_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_scrape_is_answered_while_the_dispatcher_is_frozen(whole: Whole) -> None:
    """It says so, in time; metrics of others go on, and it is back when they are."""
    pid = whole.pids()["dispatcher"]
    os.kill(pid, signal.SIGSTOP)
    try:
        samples = until(lambda: [one for one in [_scrape(whole)] if not _up(one, "dispatcher")], "it is missed")[0]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (_up(samples, "dispatcher"), _up(samples, "supervisor")) == (0, 1)
    assert ("pulse_jobs_submitted_total", frozenset()) not in samples
    until(lambda: _up(_scrape(whole), "dispatcher") == 1, "it is back", END_S)


def test_a_killed_endpoint_comes_back(whole: Whole) -> None:
    actors = whole.pids()
    (service,) = whole.ask_supervisor("status")["services"]
    assert (service["name"], service["state"]) == ("metrics", "running")
    os.kill(service["pid"], signal.SIGKILL)
    before = len(whole.log("metrics_served"))
    until(lambda: len(whole.log("metrics_served")) > before, "it serves again", END_S)
    assert _up(_scrape(whole), "dispatcher") == 1
    assert whole.pids() == actors
    before = len(whole.log("metrics_served"))
    assert whole.ask_supervisor("actors.restart", name="metrics")["pid"] != service["pid"]
    until(lambda: len(whole.log("metrics_served")) > before, "it serves again", END_S)


def test_the_command_on_a_unix_socket(whole: Whole) -> None:
    path = whole.directory / "metrics.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    command = [sys.executable, "-m", "pulse.cli.main", "metrics", "--listen", str(path), "--socket", str(whole.path)]
    with subprocess.Popen(command, env=whole.env, stderr=subprocess.DEVNULL) as process:
        try:
            assert _up(_samples(until(lambda: _over(path), "it answers", END_S)), "dispatcher") == 1
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            second = whole.command("metrics", "--listen", str(path))
            assert (second.returncode, second.stderr) == (
                1,
                f"pulse: cannot listen on {path}: somebody listens there already\n",
            )
        finally:
            process.terminate()
        assert process.wait(END_S) == 0
    assert not path.exists()


def test_a_service_whose_address_is_taken_waits_and_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    words = ["metrics", "--listen", str(path), "--parent-pid", str(os.getpid())]
    command = [sys.executable, "-m", "pulse.cli.main", *words]
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "metrics_address_taken" in process.stderr.readline()
            process.terminate()
            assert process.wait(AGAIN_S) == 0


def _over(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(ANSWER_S)
        if peer.connect_ex(str(path)):
            return ""
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        got = b"".join(iter(lambda: peer.recv(65536), b""))
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    return body.decode()
