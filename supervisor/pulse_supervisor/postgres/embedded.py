"""
The embedded PostgreSQL: a server of pulse's own, used if no DSN is given.

``prepare`` does everything before a start and returns the command; the supervisor runs it as one child of several. All
code here blocks and has no threads. The server

* is reached by its Unix socket only. Every account that can open the socket is the super-user ``pulse`` without a
password (``trust``): that is safe only because the socket's directory has mode 0700: only its owner (the user that
PostgreSQL runs as) and root can enter it;
* dies with its owner by a fast shutdown: the death signal is SIGINT. **The kernel sends it when the thread that started
  the process ends**, so start it from a thread that lives as long as the owner, not from a pool of threads;
* may be killed at any moment: initdb runs in a directory of another name, which is renamed when it is complete.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import msgspec

from pulse.errors import EmbeddedError
from pulse.system import processes
from pulse_supervisor.postgres import binaries, directories
from pulse_supervisor.postgres.accounts import Account, account_for
from pulse_supervisor.postgres.binaries import Binaries
from pulse_supervisor.postgres.postmaster import STOP_STEPS, Cluster, is_ready, settle

SUPERUSER: Final = "pulse"
DATABASE: Final = "postgres"
START_S: Final = 60.0  # recovery after a kill reads up to max_wal_size (1 GB) of log
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
_INITDB_S: Final = 300.0  # half a second on a disk of today
_LOG_BYTES: Final = 10 * 1024 * 1024  # of postgres.log; if it is larger at a start it becomes postgres.log.old
_POLL_S: Final = 0.01
_LOG_TAIL_BYTES: Final = 16_384
_LOG_TAIL_LINES: Final = 8  # after a FATAL follow its hint and the lines of the shutdown; before it, older starts
_RETRY_S: Final = 10.0
_BUSY: Final = (
    "pre-existing shared memory block",
    "lock file",
)  # PostgreSQL's messages while the former server still ends
_CHILD_EXEC: Final = Path(__file__).parents[1] / "children" / "child_exec.py"
# Written once after initdb's own settings, so that an administrator can change them there or by ALTER SYSTEM. Settings
# that must not change are on the command line. Durability (fsync, synchronous_commit) stays at PostgreSQL's default:
# on.
_DEFAULTS: Final = """
# ---- pulse: defaults for a small queue, written once by initdb; yours to change ----
max_connections = 100
shared_buffers = 128MB
timezone = 'UTC'
log_timezone = 'UTC'
jit = off                               # compiling costs more than any statement of a queue
max_logical_replication_workers = 0     # one process fewer; nothing subscribes
log_checkpoints = off
log_min_error_statement = panic         # the client gets the error; the log keeps one line
"""


class EmbeddedServer(msgspec.Struct, frozen=True):
    """
    A PostgreSQL that is ready to be started.

    Attributes:
        binaries: Directory of postgres, initdb and the rest.
        version: Version of PostgreSQL, as ``18.6``.
        cluster: The data directory and the marks of its processes.
        log_file: PostgreSQL's log.
        user: The user that it runs as; None: pulse's own.
        argv: The command, for the process that called `prepare` only.
        dsn: The DSN for clients.
        lock_fd: Holds the lock of the state directory; `release` closes it.
    """

    binaries: Path
    version: str
    cluster: Cluster
    log_file: Path
    user: str | None
    argv: tuple[str, ...]
    dsn: str
    lock_fd: int

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return self.cluster.data_dir

    @property
    def socket_dir(self) -> Path:
        """The directory of the socket; only the user that PostgreSQL runs as, and root, can enter it."""
        return self.cluster.socket_dir

    @property
    def major(self) -> int:
        """Major version of PostgreSQL, 15 to 18."""
        return int(self.version.split(".")[0])


def prepare(
    state_dir: Path,
    *,
    embedded_user: str | None,
    log: Callable[..., object],
    settings: Mapping[str, str] = _NO_SETTINGS,
    candidates: Iterable[Path] | None = None,
) -> EmbeddedServer:
    """
    Make a data directory that no server uses, and all that is needed to start one; half a second if it is new.

    Args:
        state_dir: Where data, log and socket are kept; made when missing.
        embedded_user: As root: the existing user to run it as (None: ``pulse``, made when missing); else no effect.
        log: Called with an event and fields for each thing that was made, waited for or stopped.
        settings: Further settings for the command line; they win over the configuration file.
        candidates: Directories with postgres and initdb, best first (None: the wheel's, then the system's).

    Returns:
        The server; it holds a lock on *state_dir* until `release`, or until this process ends.

    Raises:
        EmbeddedError: It failed: one line with the reason and what to do.
    """
    try:
        account = account_for(embedded_user, log)
        root = directories.make_state_dir(state_dir, account)
        lock_fd = directories.lock(root)
    except OSError as error:
        raise _unusable(state_dir, error) from error
    try:
        return _prepare(root, account, lock_fd, log, settings, candidates)
    except OSError as error:
        os.close(lock_fd)
        raise _unusable(state_dir, error) from error
    except BaseException:
        os.close(lock_fd)
        raise


def release(server: EmbeddedServer) -> None:
    """Release the state directory; the server must have ended."""
    os.close(server.lock_fd)


def run(server: EmbeddedServer, log: Callable[..., object], *, timeout_s: float = START_S) -> subprocess.Popen[bytes]:
    """
    Start *server* from this thread, which must outlive it, and return when it accepts connections.

    Raises:
        EmbeddedError: It ended, or was not ready in time; contains its log line.
    """
    deadline_s = time.monotonic() + timeout_s
    retry_until_s = time.monotonic() + _RETRY_S
    while True:
        settle(server.cluster, log)
        process = subprocess.Popen(server.argv)
        try:
            wait_ready(server, process.pid, max(0.0, deadline_s - time.monotonic()))
        except EmbeddedError as error:
            stop(process)
            if time.monotonic() >= retry_until_s or not any(words in error.message for words in _BUSY):
                raise
            time.sleep(_POLL_S)
        except BaseException:
            stop(process)
            raise
        else:
            return process


def wait_ready(server: EmbeddedServer, pid: int, timeout_s: float) -> None:
    """
    Return when the postmaster *pid* accepts connections.

    Args:
        server: The server that was started.
        pid: The process that executes its argv.
        timeout_s: Longest wait, seconds.

    Raises:
        EmbeddedError: The process ended, or the time is over; contains its log line.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(server.cluster, pid):
        if processes.state(pid) in {"", "Z", "X"}:
            raise EmbeddedError(f"PostgreSQL ended at its start: {last_words(server)}")
        if time.monotonic() >= deadline_s:
            raise EmbeddedError(f"PostgreSQL was not ready within {timeout_s:.0f} s: {last_words(server)}")
        time.sleep(_POLL_S)


def stop(
    process: subprocess.Popen[bytes], steps: tuple[tuple[signal.Signals, float], ...] = STOP_STEPS
) -> signal.Signals | None:
    """
    Stop a server that this process started, step by step, and reap it.

    Returns:
        The last signal sent, None: it had ended already.
    """
    sent: signal.Signals | None = None
    for number, wait_s in steps:
        if process.poll() is not None:
            break
        process.send_signal(number)
        sent = number
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
    return sent


def last_words(server: EmbeddedServer) -> str:
    """The log line that most likely says why the server ended: the last FATAL or PANIC, else the last one."""
    try:
        with server.log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"its log cannot be read ({error})"
    tail = "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
    return f"{_telling_line(tail, ('FATAL:', 'PANIC:'))} (log: {server.log_file})"


def _prepare(
    root: Path,
    account: Account | None,
    lock_fd: int,
    log: Callable[..., object],
    settings: Mapping[str, str],
    candidates: Iterable[Path] | None,
) -> EmbeddedServer:
    home = directories.make_private_dir(root / "postgres", account)
    uid = account.uid if account else os.geteuid()
    cluster = Cluster(home / "data", directories.socket_dir(home, account), uid)
    settle(cluster, log)
    found = binaries.find(
        binaries.candidates() if candidates is None else candidates,
        data_dir=cluster.data_dir,
        copies_dir=root / "postgres-copy",
        account=account,
        log=log,
    )
    _remove_half_made(home)
    if binaries.data_major(cluster.data_dir) is None:
        start_s = time.monotonic()
        _initialise(cluster.data_dir, found, account, durable=settings.get("fsync") != "off")
        took_s = round(time.monotonic() - start_s, 3)
        log("data_directory_made", directory=str(cluster.data_dir), postgresql=found.version, took_s=took_s)
    log_file = root / "postgres.log"
    options = ("--log", str(log_file), "--log-max-bytes", str(_LOG_BYTES), "--cwd", "/")
    return EmbeddedServer(
        binaries=found.directory,
        version=found.version,
        cluster=cluster,
        log_file=log_file,
        user=account.name if account else None,
        argv=(*_child_of_ours(signal.SIGINT, account, options), *_postgres(found, cluster, settings)),
        dsn=dsn(cluster.socket_dir),
        lock_fd=lock_fd,
    )


def dsn(socket_dir: Path, database: str = DATABASE) -> str:
    """The DSN of *database* on the server whose socket is in *socket_dir*."""
    host = quote(os.fsencode(socket_dir), safe="/")
    # With the port, since the client's PGPORT would change the socket's name.
    return f"postgresql:///{quote(database, safe='')}?host={host}&port={directories.PORT}&user={SUPERUSER}"


def _postgres(binaries: Binaries, cluster: Cluster, settings: Mapping[str, str]) -> list[str]:
    must = {
        "listen_addresses": "",
        "port": str(directories.PORT),
        "unix_socket_directories": '"' + str(cluster.socket_dir).replace('"', '""') + '"',  # a list: hence the quotes
        "unix_socket_permissions": "0700",
        "cluster_name": cluster.name,
        "logging_collector": "off",
        "log_destination": "stderr",
    }
    options = [f"{name}={value}" for name, value in {**must, **settings}.items()]
    program = [str(binaries.directory / "postgres"), "-D", str(cluster.data_dir)]
    return [*program, *(part for option in options for part in ("-c", option))]


def _child_of_ours(death_signal: signal.Signals, account: Account | None, options: tuple[str, ...]) -> list[str]:
    """The start of a command line that runs the rest as *account*, with a clean environment, and dies with us."""
    user = ("--user", account.name) if account else ()
    # Without our environment: PG* variables would change what PostgreSQL does, and others may be secrets.
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **kept}
    wrapper = [sys.executable, "-I", "-S", str(_CHILD_EXEC)]
    parent = ["--parent", str(os.getpid()), "--death-signal", death_signal.name.removeprefix("SIG")]
    variables = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
    return [*wrapper, *parent, *user, *options, *variables, "--"]


def _initialise(data_dir: Path, binaries: Binaries, account: Account | None, *, durable: bool) -> None:
    fresh = data_dir.with_name(f".new-data-{secrets.token_hex(4)}")
    # C.UTF-8 sorts as C does, on every system; where it is unknown, C itself.
    said = _initdb(fresh, "C.UTF-8", binaries, account, durable=durable)
    if said is not None and "locale" in said:
        said = _initdb(fresh, "C", binaries, account, durable=durable)
    if said is not None:
        shutil.rmtree(fresh, ignore_errors=True)
        why = _telling_line(said, ("error:", "FATAL:"))
        raise EmbeddedError(f"initdb of PostgreSQL {binaries.version} failed: {why}")
    _sync(fresh / "postgresql.conf", os.O_WRONLY | os.O_APPEND, _DEFAULTS.encode("ascii"))
    fresh.rename(data_dir)
    _sync(data_dir.parent, os.O_RDONLY | os.O_DIRECTORY)


def _initdb(fresh: Path, locale: str, binaries: Binaries, account: Account | None, *, durable: bool) -> str | None:
    """Run initdb; None: it succeeded, else its output."""
    options = [f"--locale={locale}", "--encoding=UTF8", "--auth-local=trust", "--auth-host=reject"]
    sync = [] if durable else ["--no-sync"]
    program = [str(binaries.directory / "initdb"), f"--pgdata={fresh}", f"--username={SUPERUSER}", *options, *sync]
    try:
        done = subprocess.run(
            [*_child_of_ours(signal.SIGKILL, account, ("--cwd", "/")), *program],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_INITDB_S,
        )
    except subprocess.TimeoutExpired:
        return f"error: not done within {_INITDB_S:.0f} s"
    return None if done.returncode == 0 else done.stdout.decode("utf-8", "replace")


def _remove_half_made(home: Path) -> None:
    """Remove what a killed initdb left; what is still in use goes next time."""
    for path in home.glob(".new-data-*"):
        shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path, flags: int, more: bytes = b"") -> None:
    """Sync *path* to disk, with *more* added to it."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if more:
            os.write(descriptor, more)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _telling_line(text: str, marks: tuple[str, ...]) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in marks)]
    return (telling or lines or ["it said nothing"])[-1]


def _unusable(state_dir: Path, error: OSError) -> EmbeddedError:
    return EmbeddedError(
        f"the state directory {state_dir} cannot be used: {error}; choose another with --state-dir or PULSE_STATE_DIR"
    )
