"""Whatever is wrong is told in one clear line, to whoever did it, and nothing else notices."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import pulse
from tests.process.system_kit import APP, END_S, Jobs, Whole, clean_environment, place, run
from tests.support.confidential import confidential
from tests.support.postgres import GIVEN_DSN, PASSWORD_ROLE, Postgres
from tests.support.system import Refused, short_directory, until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

SECRET = confidential("geh31m-and-wrong", "password of a DSN")
CRON_ALLOWED = (
    "five fields are allowed (minute hour day month weekday), or six with seconds first, or one of "
    "@yearly @annually @monthly @weekly @daily @midnight @hourly"
)
DSN_ALLOWED = "a postgresql:// URL (special characters as %XX) or keywords (host=… dbname=…) are allowed"
LARGE = 10_000_000


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    """A system with a job that runs through all that is done wrong here, and must not notice."""
    with server.database() as dsn, place(dsn) as whole:
        whole.start()
        jobs, gate, pids = whole.jobs(), whole.gate("all"), whole.pids()
        pool = whole.pool()
        job = jobs.submit("hold", {"gate": str(gate)})
        worker = whole.wait_entry(job).pid
        yield whole
        gate.touch()
        ended = jobs.wait(job)
        assert (ended.attempts, ended.history) == (1, ())
        assert whole.entries(job, "end")[0].pid == worker
        assert pool.workers() == [worker]
        assert whole.pids() == pids
        assert whole.rows("SELECT name FROM pulse.jobs WHERE name <> ALL ($1)", ["hold", "mark"]) == []
        failures = [line for line in whole.errors.read_text("utf-8").splitlines() if '"level": "error"' in line]
        assert failures == []


@pytest.fixture
def jobs(whole: Whole) -> Jobs:
    """A client."""
    return whole.jobs()


@pytest.fixture
def count(whole: Whole) -> Iterator[None]:
    """No job and no schedule is made by what is refused."""
    sql = "SELECT (SELECT count(*) FROM pulse.jobs), (SELECT count(*) FROM pulse.schedules)"
    before = whole.rows(sql)
    yield
    assert whole.rows(sql) == before


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a program said to a person: all but its log."""
    return [line for line in done.stderr.splitlines() if not line.startswith("{")]


@pytest.mark.usefixtures("count")
class TestSubmits:
    """What cannot be a job."""

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ([1], "args must be an object of keyword arguments, not list"),
            ("text", "args must be an object of keyword arguments, not str"),
            ({"a": "\0"}, "args are not storable: it contains a NUL character"),
            ({"a": "\ud800"}, "args are not storable: it contains a lone surrogate"),
            ({"a": float("nan")}, "args are not JSON: Out of range float values are not JSON compliant"),
            ({"a": {1}}, "args are not JSON: Object of type set is not JSON serializable"),
            ({"a": "x" * LARGE}, f"submit: the request has {LARGE + 66} bytes; the server accepts 8388608"),
            ({"a": "x" * 2**20}, f"job 0 (mark): args have {2**20 + 8} bytes; at most {2**20} are allowed"),
        ],
    )
    def test_by_the_client(self, jobs: Jobs, args: dict[str, object], message: str) -> None:
        """The error says what is wrong with the args, and what is allowed; the client can go on."""
        with pytest.raises(pulse.PulseError) as error:
            jobs.submit("mark", args)
        assert str(error.value) == message
        assert jobs.client.ping() < END_S

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ("[1]", "args must be a JSON object"),
            ("3", "args must be a JSON object"),
            ("not json", 'invalid input syntax for type json (Token "not" is invalid.)'),
            ('{"a": "\\u0000"}', "unsupported Unicode escape sequence (\\u0000 cannot be converted to text.)"),
            (
                '{"a": "\\ud800"}',
                "invalid input syntax for type json (Unicode low surrogate must follow a high surrogate.)",
            ),
            ('{"a": NaN}', 'invalid input syntax for type json (Token "NaN" is invalid.)'),
            ('{"a": "\0"}', None),
            ("{" * 50_000, None),
        ],
    )
    def test_by_hand(self, whole: Whole, args: str, message: str | None) -> None:
        """A client that checks nothing gets bad_request, which names the job, and may go on."""
        with whole.client() as peer:
            with pytest.raises(Refused) as error:
                peer.call("submit", jobs=[{"name": "mark", "args": args}])
            assert error.value.code == "bad_request"
            assert error.value.message.startswith("job mark cannot be stored: ")
            assert "\n" not in error.value.message
            if message is not None:
                assert error.value.message == f"job mark cannot be stored: {message}"
            assert peer.call("ping") == {}

    def test_a_frame_that_is_too_large(self, whole: Whole) -> None:
        """10 MB by hand: the peer is told how much is allowed, and hung up on; nobody else is."""
        with whole.client() as peer, whole.client() as other:
            with pytest.raises(AssertionError, match="hung up"):
                peer.call("submit", jobs=[{"name": "mark", "args": "x" * LARGE}])
            (said,) = peer.expect_end()
            assert said.body["code"] == "too_large"
            assert re.fullmatch(r"a frame of 100000\d\d bytes; at most 8388608 are allowed", said.body["message"])
            assert other.call("ping") == {}

    @pytest.mark.parametrize("sql", ["[1]", '"text"', "3", "null"])
    def test_by_sql(self, whole: Whole, sql: str) -> None:
        """pulse.submit refuses args that are no object, too."""
        import asyncpg

        with pytest.raises(asyncpg.PostgresError, match=r"args must be a JSON object|null value"):
            whole.rows("SELECT pulse.submit(name => 'mark', args => $1::text::jsonb)", sql)

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ("[1]", "args must be a JSON object of keyword arguments, not an array"),
            ("{nope", "args are not JSON: Expecting property name enclosed in double quotes at character 2"),
            ('{"a": "\\u0000"}', "args are not storable: it contains a NUL character"),
            ('{"a": "\\ud800"}', "args are not storable: it contains a lone surrogate"),
        ],
    )
    def test_by_command(self, whole: Whole, args: str, message: str) -> None:
        """``pulse ctl submit`` says it in a line that shows what was written, and exits with 2."""
        done = whole.command("ctl", "submit", "mark", args)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("pulse: Invalid value for '[ARGS]': ")
        assert f"{message} (see: pulse ctl submit --help)" in line
        assert done.stdout == ""

    def test_one_bad_line_of_many(self, whole: Whole) -> None:
        """A bulk submit names the line that is wrong, and how many jobs were submitted before it."""
        given = "[1]\n{}\n"
        done = whole.command("ctl", "submit", "mark", "-", stdin=given)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        what = "args must be a JSON object of keyword arguments, not an array"
        assert line == f"pulse: line 1: {what}; submitted before: 0 jobs"

    def test_a_payload_of_ten_megabytes(self, whole: Whole) -> None:
        """By the command line it is refused with its size and what the server accepts."""
        given = '{"a": "' + "x" * LARGE + '"}\n'
        done = whole.command("ctl", "submit", "mark", "-", stdin=given)
        assert done.returncode == 1
        size = r"the request has 10000\d\d\d bytes; the server accepts 8388608"
        assert re.fullmatch(rf"pulse: lines? 1.*: submit: {size}; submitted before: 0 jobs\n", done.stderr)


@pytest.mark.usefixtures("count")
class TestSchedules:
    """What cannot be a schedule."""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--cron", "61 * * * *"), f"cron is '61 * * * *': out of range; {CRON_ALLOWED}"),
            (("--cron", "nonsense"), f"cron is 'nonsense'; {CRON_ALLOWED}"),
            (
                ("--cron", "0 0 31 2 *"),
                "cron is '0 0 31 2 *': it names no day that ever comes; one that comes is allowed",
            ),
            (
                ("--cron", "* * * * *", "--timezone", "Mars/Olympus"),
                "timezone is 'Mars/Olympus'; an IANA name such as Europe/Berlin is allowed",
            ),
        ],
    )
    def test_by_command(self, whole: Whole, words: tuple[str, ...], message: str) -> None:
        """The line names the value and what is allowed."""
        done = whole.command("ctl", "schedules", "create", "mark", *words)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pulse: {message}\n")

    def test_by_the_client(self, jobs: Jobs) -> None:
        """The same words are the error's."""
        with pytest.raises(pulse.BadRequestError) as error:
            jobs.client.schedules_create("mark", cron="* * *")
        assert str(error.value) == f"cron is '* * *'; {CRON_ALLOWED}"


class TestWorkers:
    """Pools that cannot work."""

    @pytest.mark.parametrize(
        ("app", "message"),
        [
            ("nosuch:app", r"no module 'nosuch' here \(.*\) or on the Python path"),
            ("tests.support.system_app:nope", "tests.support.system_app has no 'nope'"),
            ("tests.support.system_app:LEDGER", "it is of type str, not a pulse.App"),
            ("tests.support.system_app", "write MODULE:APP, as in shop.jobs:app"),
        ],
    )
    def test_an_app_that_is_none(self, whole: Whole, app: str, message: str) -> None:
        """The line names the app and what is the matter with it; exit code 1."""
        done = run("pulse.cli.main", ["worker", app], whole.env)
        assert done.returncode == 1
        (line,) = lines(done)
        assert re.fullmatch(f"pulse: cannot load {app!r}: {message}", line)

    def test_a_socket_path_that_is_too_long(self, whole: Whole) -> None:
        """Worker and client say how long it is, and what is possible."""
        path = "/tmp/" + "x" * 120
        advice = "at most 107 are possible: set PULSE_RUNTIME_DIR to a shorter directory"
        expected = f"pulse: socket path {path} has 125 bytes, {advice}\n"
        for words in (["worker", APP, "--socket", path], ["ctl", "--socket", path, "status"]):
            done = run("pulse.cli.main", words, whole.env)
            assert (done.returncode, done.stderr) == (1, expected)


class TestNobodyListens:
    """Clients and workers without a server."""

    @pytest.mark.parametrize("words", [["status"], ["submit", "mark"], ["jobs", "list"]])
    def test_a_command(self, words: list[str]) -> None:
        """Exit code 3, and the line lists every place where was looked and what was found there."""
        with short_directory() as directory:
            env = clean_environment(
                PULSE_RUNTIME_DIR=str(directory / "run"), XDG_RUNTIME_DIR=str(directory), TMPDIR=str(directory)
            )
            done = run("pulse.cli.main", ["ctl", *words], env)
            assert done.returncode == 3
            (line,) = done.stderr.splitlines()
            assert line.startswith("pulse: nobody answers; looked at ")
            for place_ in ("run", "pulse", f"pulse-{os.geteuid()}"):
                assert f"{directory / place_ / 'pulse.sock'} (no such file or directory)" in line

    def test_a_worker_waits(self, server: Postgres) -> None:
        """A pool that comes first waits, each of its processes says so once, and works as soon as there is a server."""
        with server.database() as dsn, place(dsn) as whole:
            whole.runtime_dir.mkdir(mode=0o700)
            pool = whole.pool(wait=False)
            expected = f"nobody answers; looked at {whole.path} (no such file or directory)"
            until(lambda: pool.said.count(expected) >= 2, "parent and child have said it")
            whole.start()
            until(lambda: whole.is_connected(pool), "it connects")
            assert whole.jobs().wait(whole.jobs().submit("mark")).attempts == 1
            assert pool.said.count(expected) == 2
            assert pool.stop() == 0


class TestSupervisor:
    """Supervisors that cannot begin, beside one that runs."""

    def refused(self, *words: str, cwd: Path | None = None, **env: str) -> list[str]:
        """What a supervisor says that exits with 1."""
        done = run(
            "pulse_supervisor.main", words, clean_environment(PULSE_LOG_FORMAT="json", **env), cwd=cwd or Path("/")
        )
        assert done.returncode == 1, done.stderr
        assert SECRET not in done.stdout + done.stderr
        return lines(done)

    def test_a_second_one(self, whole: Whole) -> None:
        """In a directory that is in use it names the directory and the pid of the first, which goes on."""
        assert whole.process is not None
        said = self.refused(PULSE_RUNTIME_DIR=str(whole.runtime_dir), PULSE_DSN=whole.dsn)
        holder = f"another pulse-supervisor (pid {whole.process.pid})"
        assert said == [f"pulse-supervisor: runtime directory {whole.runtime_dir} is in use by {holder}"]
        assert whole.command("ctl", "status").returncode == 0

    def test_an_app_that_is_none(self, whole: Whole) -> None:
        """A pool that cannot work ends the start at once, with the pool's own line."""
        with short_directory() as directory:
            said = self.refused("--app", "nosuch:app", PULSE_RUNTIME_DIR=str(directory / "run"), PULSE_DSN=whole.dsn)
        assert len(said) == 2
        assert said[0].startswith("pulse: cannot load 'nosuch:app': no module 'nosuch' here ")
        assert said[1] == "pulse-supervisor: pool refuses to run (exit code 78)"

    @pytest.mark.parametrize(
        ("dsn", "shown"),
        [
            (f"postgres//user:{SECRET}@host/db", "postgres//user:***@host/db"),
            (f"postgresql://user:{SECRET}@host:port/db", "postgresql://user:***@host:port/db"),
            (f"mysql://user:{SECRET}@host/db", "mysql:***@host/db"),
        ],
    )
    def test_a_dsn_that_is_none(self, dsn: str, shown: str) -> None:
        """The line shows it without its password, and what is allowed."""
        assert self.refused(PULSE_DSN=dsn) == [f"pulse-supervisor: PULSE_DSN is {shown!r}: {DSN_ALLOWED}"]

    def test_a_database_that_is_not_there(self, whole: Whole) -> None:
        """PostgreSQL's own words, and the DSN without its password."""
        missing = changed_dsn(whole.dsn, database="nosuchdb", password=SECRET)
        with short_directory() as directory:
            (line,) = self.refused(PULSE_DSN=missing, PULSE_RUNTIME_DIR=str(directory / "run"))
        assert re.fullmatch(
            r'pulse-supervisor: PULSE_DSN postgresql://.*\*\*\*.*: database "nosuchdb" does not exist', line
        )

    @pytest.mark.skipif(GIVEN_DSN in os.environ, reason="how a given server lets users in is not known")
    def test_a_password_that_is_wrong(self, whole: Whole) -> None:
        """PostgreSQL's own words, and not the password."""
        wrong = changed_dsn(whole.dsn, user=PASSWORD_ROLE, password=SECRET)
        with short_directory() as directory:
            (line,) = self.refused(PULSE_DSN=wrong, PULSE_RUNTIME_DIR=str(directory / "run"))
        assert re.fullmatch(
            rf'pulse-supervisor: PULSE_DSN postgresql://.*: password authentication failed for user "{PASSWORD_ROLE}"',
            line,
        )

    def test_settings_of_the_environment(self) -> None:
        """A line for each setting that is wrong: its name, its value, what is allowed."""
        said = self.refused(PULSE_LEASE_S="3x", PULSE_BATCH="0", PULSE_LOG_LEVEL="loud", PULSE_BACKOFF="none")
        assert sorted(said) == [
            (
                "pulse-supervisor: PULSE_BACKOFF is 'none': quadratic[:UNIT], exponential[:FIRST[:LONGEST]], "
                "fixed:SECONDS, list:SECONDS,SECONDS,... with seconds from 0 to 999999999 is allowed"
            ),
            "pulse-supervisor: PULSE_BATCH is '0': a whole number from 1 to 10000 is allowed",
            "pulse-supervisor: PULSE_LEASE_S is '3x': a number of seconds above 0 is allowed, at most 1e9",
            "pulse-supervisor: PULSE_LOG_LEVEL is 'loud': debug or info or warning or error or critical is allowed",
        ]

    def test_settings_of_the_file(self, tmp_path: Path) -> None:
        """The same for the config file, with the file's name; a word that is no setting gets the nearest that is."""
        file = tmp_path / "pulse.toml"
        file.write_text("lease_s = 'x'\nhartbeat_s = 3\n")
        assert sorted(self.refused(cwd=tmp_path)) == [
            f"pulse-supervisor: hartbeat_s in {file} is no setting; the nearest that is: heartbeat_s",
            f"pulse-supervisor: lease_s in {file} is 'x': a number of seconds above 0 is allowed, at most 1e9",
        ]

    def test_runtime_directories_that_are_not_safe(self, tmp_path: Path) -> None:
        """A link, a file, a directory open to all, a path that is too long: each is named, and none is touched."""
        (tmp_path / "file").touch()
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        (tmp_path / "link").symlink_to(tmp_path / "open")
        long = tmp_path / ("x" * 120)
        expected = {
            tmp_path / "file": "is not a directory",
            tmp_path / "open": f"is writable by others (mode 0777): chmod go-w {tmp_path / 'open'}",
            tmp_path / "link": "is a symlink: name the directory that it points to",
        }
        for path, words in expected.items():
            said = self.refused(PULSE_RUNTIME_DIR=str(path), PULSE_DSN="postgresql:///db")
            assert said == [f"pulse-supervisor: runtime directory {path} {words}"]
        assert list((tmp_path / "open").iterdir()) == []
        (line,) = self.refused(PULSE_RUNTIME_DIR=str(long), PULSE_DSN="postgresql:///db")
        assert line.startswith(
            f"pulse-supervisor: socket path {long}/pulse.sock has {len(str(long)) + 11} bytes, at most 107"
        )

    def test_a_runtime_directory_that_cannot_be_written(self, tmp_path: Path) -> None:
        """The line names it and the setting that helps; for root it takes a file system that cannot be written."""
        path = Path("/proc/pulse")
        if os.geteuid() != 0:
            tmp_path.chmod(0o500)
            path = tmp_path / "run"
        (line,) = self.refused(PULSE_RUNTIME_DIR=str(path), PULSE_DSN="postgresql:///db")
        assert line.startswith(f"pulse-supervisor: runtime directory {path} cannot be made: ")
        assert line.endswith("; set PULSE_RUNTIME_DIR")

    def test_a_file_in_place_of_a_socket(self) -> None:
        """What is no socket is not removed."""
        with short_directory() as directory:
            (directory / "pulse.sock").write_text("mine")
            said = self.refused(PULSE_RUNTIME_DIR=str(directory), PULSE_DSN="postgresql:///db")
            assert said == [
                f"pulse-supervisor: {directory / 'pulse.sock'} is in the way: it is not a socket; move it away"
            ]
            assert (directory / "pulse.sock").read_text() == "mine"


def changed_dsn(dsn: str, *, database: str | None = None, user: str | None = None, password: str = "") -> str:
    """*dsn* with other parts, as a URL with the host in its query."""
    split = urlsplit(dsn)
    query = {key: values[0] for key, values in parse_qs(split.query).items()}
    query |= {"host": query.get("host") or split.hostname or "", "password": password}
    if user is not None or "user" not in query:
        query["user"] = user or split.username or ""
    words = "&".join(f"{key}={value}" for key, value in query.items() if value)
    return f"postgresql:///{database or split.path.lstrip('/')}?{words}"
