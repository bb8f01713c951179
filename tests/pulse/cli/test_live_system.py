"""
Every command on a real system, in a real terminal and through pipes; and at night: a frozen dispatcher, a database
that is down, a window of 40 columns, Ctrl-C, `| head -1`.

One system serves all of it, in this order: what breaks it for a moment comes last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest

from pulse.common.text import width_of
from tests.support.commandline.cli import PULSE, Done, run, run_on_terminal
from tests.support.commandline.tmux import Screen, screen
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

ALLOW: Final = "UPDATE pg_database SET datallowconn = $1 WHERE datname = current_database()"
CUT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
HOSTILE: Final = "x\x1b[31m\u202e"
READING: Final = [
    "ctl status", "ctl jobs list", "ctl jobs get JOB", "ctl jobs why JOB", "ctl workers", "ctl topics list",
    "ctl topics get default", "ctl topics groups default",
    "ctl schedules list", "ctl schedules get SCHEDULE", "ctl schedules preview SCHEDULE",
    "ctl dispatch status", "ctl logs", "ctl top --once",
]  # fmt: skip
COLOURLESS: Final = {"ctl jobs why JOB", "ctl schedules preview SCHEDULE"}
LISTINGS: Final = {"ctl workers", "ctl top --once", "ctl topics list"}
SOON_S: Final = 4.0  # 2 s on a machine that does nothing else: that bar is held elsewhere, best of five
ENDLESS: Final = ["ctl logs --follow", "ctl submit quick -", "ctl top"]


class Site:
    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.env = {**whole.env, "TERM": "xterm-256color"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):  # pytest -n sets the width for its processes
            self.env.pop(name, None)
        self.names: dict[str, str] = {}

    def words(self, line: str) -> list[str]:
        return [self.names.get(word, word) for word in shlex.split(line)]

    def pipe(self, line: str) -> Done:
        return run(self.words(line), self.env)

    def terminal(self, line: str, **options: Any) -> Done:
        env = {**self.env, **options.pop("env", {})}
        return run_on_terminal(self.words(line), env, **options)


@pytest.fixture(scope="module")
def site(newest_server: Postgres) -> Iterator[Site]:
    with newest_server.database() as dsn, place(dsn, **{**SHORT_LEASE, "PULSE_DSN": dsn}) as whole:
        whole.start()
        whole.pool("--processes", "2")
        site = Site(whole)
        site.names["JOB"] = site.pipe("ctl submit nobody '{}' --topic lost").out.strip()
        site.pipe("ctl submit quick '{}' --delay 3600")
        made = site.pipe("ctl schedules create nobody --every 3600 --topic lost --json").document
        assert isinstance(made, dict)
        site.names["SCHEDULE"] = made["schedule"]["id"] if "schedule" in made else made["id"]
        whole.rows("SELECT pulse.submit($1, topic => $1)", HOSTILE)
        until(lambda: _handler_processes(site) == 2, "the workers are connected")
        yield site


def _handler_processes(site: Site) -> int:
    document: Any = site.pipe("ctl workers --json").document
    return sum(worker["capacity"] > 0 for worker in document["workers"])


@pytest.mark.parametrize("line", READING)
def test_reading(site: Site, line: str) -> None:
    """Through a pipe plain text, in 40 columns the same in colours; no foreign text acts on a terminal."""
    piped, shown = site.pipe(line), site.terminal(line, columns=40)
    well = int(line == "ctl status")  # fsync is off here
    assert (piped.code, piped.err, shown.code) == (well, "", well)
    assert piped.out.strip()
    assert "\x1b" not in piped.out
    assert "\x1b[31m\u202e" not in shown.out
    assert "\x1b[" in shown.out or line in COLOURLESS
    if line in LISTINGS:
        assert max(width_of(text.rstrip()) for text in shown.plain.splitlines()) <= 40


def test_logs_are_of_whom_one_asks(site: Site) -> None:
    lines = site.pipe("ctl logs --lines 1000 --json").out.splitlines()
    assert {"supervisor", "dispatcher"} <= {json.loads(line)["actor"] for line in lines}
    assert "supervisor_ready" in {json.loads(line)["event"] for line in lines}
    chosen = site.pipe("ctl logs --actor dispatcher --level info --json").out.splitlines()
    assert {(json.loads(x)["actor"], json.loads(x)["level"] == "debug") for x in chosen} == {("dispatcher", False)}
    assert len(site.pipe("ctl logs -n 2").out.splitlines()) == 2
    misspelled = site.pipe("ctl logs --actor dispacher")
    assert (misspelled.out, misspelled.err) == (
        "",
        "pulse: no actor is known as dispacher. Did you mean 'dispatcher'?\n",
    )


def test_following(site: Site) -> None:
    command = [*PULSE, "ctl", "logs", "-f", "-n", "1", "--json"]
    with subprocess.Popen(command, env=site.env, stdout=subprocess.PIPE) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)  # else a failure would wait for its end
        assert process.stdout is not None
        assert process.stdout.readline()  # the newest line: from now on it follows
        before = len(site.whole.log("child_running", name="scheduler"))
        assert site.pipe("ctl actors restart scheduler").code == 0
        until(lambda: len(site.whole.log("child_running", name="scheduler")) > before, "the scheduler runs again")
        for line in process.stdout:
            told = json.loads(line)
            if told["event"] == "child_running" and told["name"] == "scheduler":
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


@pytest.mark.parametrize("line", ENDLESS)
def test_ctrl_c(site: Site, line: str) -> None:
    """It ends commands that would run for ever, with 130; the terminal is usable again, with its old content."""
    with screen() as terminal:
        _start(terminal, site, line)
        if line.endswith("-"):
            until(lambda: _reads("ctl submit quick -"), "it waits for a line")
            terminal.type("{}", "Enter")
        else:
            terminal.see({"ctl top": "q quit"}.get(line, "supervisor"))
        terminal.type("C-c")
        assert terminal.code() == 130
        assert "Traceback" not in terminal.text
        assert "q quit" not in terminal.text


def test_top(site: Site) -> None:
    with screen() as terminal:
        _start(terminal, site, "ctl top --interval 0.2", columns=200, lines=40)
        terminal.see("topic (most waiting)", "lost", "worker (most running)", "waiting", "nobody")
        site.pipe("ctl submit nobody '{}' --topic found")
        terminal.see("found")  # nobody has pressed a key
        terminal.type("t", "w")
        terminal.see("topic (oldest)", "worker (longest)")
        terminal.resize(60, 20)
        until(lambda: max(map(width_of, terminal.text.splitlines())) <= 60, "it fits into the window")
        terminal.type("p")
        terminal.see("PAUSED")
        terminal.type("p", "q")
        assert terminal.code() == 0
        assert "topic (" not in terminal.text


def test_top_without_a_terminal(site: Site) -> None:
    """A document, or page after page; without a keyboard it is watched all the same."""
    document: Any = site.pipe("ctl top --json").document
    assert {"at", "silent", "stats", "status", "workers"} <= document.keys()
    command = [*PULSE, "ctl", "top", "--interval", "0.1"]
    with subprocess.Popen(command, env=site.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert next(line for line in process.stdout if line.startswith("supervisor "))
        assert next(line for line in process.stdout if line.startswith("supervisor "))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    with screen() as terminal:
        _start(terminal, site, "ctl top", more="< /dev/null")
        terminal.see("q quit")
        terminal.type("C-c")
        assert terminal.code() == 130


def test_what_runs(site: Site) -> None:
    gate = site.whole.gate("top")
    job = site.pipe(f"ctl submit hold {shlex.quote(json.dumps({'gate': str(gate)}))}").out.strip()

    def seen() -> list[list[str]]:
        lines = [line.split() for line in site.pipe("ctl top --once").out.splitlines()]
        return [line for line in lines if job in line or line[-1:] == ["hold"]]

    try:
        until(lambda: len(seen()) == 2, "it runs")
        at_worker, running = seen()
        assert (at_worker[3], at_worker[-1]) == ("1/10", "hold")
        assert running[2:] == ["hold", "default", "1/5", job]
        assert {at_worker[5], running[1]} <= {"ms", "s"}
    finally:
        gate.touch()


def test_nothing_is_wrong(site: Site) -> None:
    """The doctor knows this system: it names what the tests' database lacks, and every process is well."""
    done = site.pipe("doctor --json")
    states = {check["name"]: check["state"] for check in json.loads(done.out)["checks"]}
    for name in ("sockets", "runtime-dir", "database", "schema", "indexes", "watchdog", "leases", "limits"):
        assert states[name] == "ok", name
    assert states["processes"] in {"ok", "warning"}  # some were restarted a moment ago
    assert states["settings"] == "wrong"  # fsync and autovacuum are off here
    assert done.code == 1
    assert re.fullmatch(r"pulse: \d+ wrong, \d+ warnings?: .*\bsettings\b.*\n", done.err)


def test_thousands_of_paused_topics(site: Site) -> None:
    """The status stays a page, and no actor dies for an answer longer than a frame of the bus."""
    pids = site.whole.pids()
    site.whole.rows(
        "INSERT INTO pulse.dispatch_control (topic, paused, paused_at, reason)"
        " SELECT 'paused-' || n, true, now(), repeat('x', 100) FROM generate_series(1, 3000) n"
    )
    try:
        status = site.pipe("ctl status")
        assert "and 2,995 more topics: pulse ctl dispatch status" in status.out
        assert len(status.out.splitlines()) < 50
        until(lambda: "and 2,995 more\n" in site.pipe("ctl status").out, "findings are looked for every few seconds")
        assert len(site.pipe("ctl dispatch status").out.splitlines()) >= 3000
        assert site.whole.pids() == pids
        (line,) = until(lambda: site.whole.log("gate_changed", topics=3000), "it is logged")
        assert len(line["changed"]) == 20
    finally:
        site.whole.rows("DELETE FROM pulse.dispatch_control WHERE topic <> ''")


def test_a_frozen_dispatcher(site: Site) -> None:
    with screen() as terminal:
        _start(terminal, site, "ctl top", columns=100, lines=30)
        terminal.see("topic (most waiting)")
        pid, frozen_s = 0, 0.0

        def is_told() -> bool:
            """On a busy machine it may run again before a command has looked."""
            nonlocal pid, frozen_s
            if (found := site.whole.pids()["dispatcher"]) != pid:
                pid, frozen_s = found, time.monotonic()
                os.kill(pid, signal.SIGSTOP)
            done = site.pipe("ctl status")
            assert done.spent_s < SOON_S
            return "wrong    processes: the dispatcher does not answer: " in done.out

        try:
            frozen_s = time.monotonic()
            until(is_told, "it is told")
            terminal.see(
                "processes: the dispatcher does not answer", within_s=SOON_S + 0.5 - (time.monotonic() - frozen_s)
            )
            assert site.pipe("ctl logs").code == 0
        finally:
            site.whole.wait_actor("dispatcher", not_pid=pid)
        until(lambda: "topic (most waiting)" in terminal.text, "the screen is as before")
        terminal.type("q")
        assert terminal.code() == 0
    assert "child_faulty" in site.pipe("ctl logs --level error").out


def test_a_database_that_is_down(site: Site) -> None:
    """`status` says so in time, lists say so in a line, and the doctor says what to do and checks the rest."""
    whole = site.whole
    whole.rows(ALLOW, False)
    try:
        whole.rows(CUT)
        status = site.pipe("ctl status")
        assert status.spent_s < SOON_S
        assert "wrong    database: the database is away: " in status.out
        jobs = site.pipe("ctl --timeout 2 jobs list")
        assert (jobs.code, jobs.err.count("\n")) == (1, 1)
        assert jobs.err.startswith("pulse: the database ")
        doctor = site.pipe("doctor")
        assert doctor.code == 1
        assert "\nwrong    database: " in doctor.out
        assert "PULSE_DSN is what counts" in doctor.out
        assert "\nok       sockets: " in doctor.out
        assert doctor.spent_s < 10.0
    finally:
        whole.rows(ALLOW, True)


def _start(terminal: Screen, site: Site, line: str, columns: int = 100, lines: int = 30, more: str = "") -> None:
    command = shlex.join([sys.executable, "-m", "pulse.cli.main", *site.words(line)])
    terminal.start(f"{command} {more}", {**site.env, "TERM": "screen-256color", "LC_ALL": "C.UTF-8"}, columns, lines)


def _reads(line: str) -> bool:
    """Whether the command sleeps, with the wire loaded: then it waits only for the keyboard."""
    for process in psutil.process_iter(["cmdline", "status"]):
        if " ".join(process.info["cmdline"] or ()).endswith(f"pulse.cli.main {line}"):
            with contextlib.suppress(psutil.Error):
                loaded = any("msgpack" in entry.path for entry in process.memory_maps())
                return loaded and process.info["status"] == psutil.STATUS_SLEEPING
    return False
