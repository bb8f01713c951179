"""
Connections to PostgreSQL that never hang.

Why not asyncpg's own pool: on a connection whose other end vanished, ``pool.acquire()`` and a query's cancellation wait
for an answer that never comes (still hung after 15 s). Here every step has a deadline, and after an error, a timeout or
a cancellation in mid-statement the connection is terminated, never reused: its state is unknown, and a new connection
costs a few milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

import asyncpg
import msgspec
from asyncpg.connect_utils import SessionAttribute
from asyncpg.exceptions import TargetServerAttributeNotMatched

from pulse.common.dsn import as_url, hosts_of, redact_dsn
from pulse.common.waiting import Turns
from pulse.errors import ConfigError, StatementError, StatementTimeoutError, UnavailableError
from pulse.security.schema_name import DEFAULT
from pulse.store.connections.citus import is_distributed, stay_with_rows
from pulse.store.connections.hosts import first_of
from pulse.store.connections.session import Session
from pulse.store.connections.usage import Usage
from pulse.store.failures import FAILURES, Failing, error_of, is_safe_after
from pulse.store.recovery.timelines import ServerTimeline, Timelines
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

CONNECT_DEADLINE_S: Final = 5.0  # a TCP handshake that takes longer is a partition
STATEMENT_DEADLINE_S: Final = 10.0  # client side; the server's own limit comes first where the server still answers

# Limits that the server enforces on every connection.
SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "statement_timeout": "5000",
    "lock_timeout": "2000",
    "idle_in_transaction_session_timeout": "10000",
    "timezone": "UTC",
    "search_path": "pg_catalog, pg_temp",  # functions in another schema must not hide these
}
# Likewise, for its end of TCP: a host that vanished would keep its sessions, and the locks of their statements, for
# hours. Set when the session has begun: PgBouncer refuses parameters of a start that it does not know.
TCP_LIMITS: Final = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    f"SET tcp_user_timeout = {round(1000 * STATEMENT_DEADLINE_S)}"  # the client waits no longer for an answer
)
# Plans that do not depend on when ANALYZE last ran: on the hot path every access is a probe or a short range of an
# index.
HOT_SETTINGS: Final[Mapping[str, str]] = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # One plan for all arguments: by default the server plans `end_attempts` again each time, and everything else the
    # first five times: as long as the statement itself takes for one job.
    "plan_cache_mode": "force_generic_plan",
}
# The next heartbeat repeats a lost one; no statement here opens or closes an attempt.
BEAT_SETTINGS: Final[Mapping[str, str]] = {**HOT_SETTINGS, "synchronous_commit": "off", "lock_timeout": "500ms"}
# Counting waiting jobs may come later; it must not slow down other statements.
COUNT_SETTINGS: Final[Mapping[str, str]] = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "statement_timeout": "500",
    "lock_timeout": "100ms",
}

# What PgBouncer answers to settings of a session that come with its start; SQL sets them there instead.
_REFUSES_SETTINGS: Final = "unsupported startup parameter"

# Only a change of the settings helps: wrong password, unknown user or database, no permission.
REFUSED_SQLSTATES: Final = frozenset({"28000", "28P01", "3D000", "42501"})


class Target(msgspec.Struct, frozen=True):
    """
    Where to connect, as which user, and which schema is meant.

    Attributes:
        dsn: A libpq URL; several hosts are allowed, then the one that takes writes is chosen.
        application_name: The name in pg_stat_activity.
        schema: Name of the schema that holds the queue.
    """

    dsn: str
    application_name: str
    schema: str = DEFAULT

    @property
    def shown(self) -> str:
        """The DSN without its password."""
        return redact_dsn(self.dsn)


class ServerCheck(Protocol):
    """Decides whether the server that a new connection leads to may be used."""

    async def __call__(self, connection: Session, shown: str, *, writable: bool) -> None:
        """Raise an UnavailableError if it must not be; *writable*: it has to take writes."""


async def connect(
    target: Target,
    settings: Mapping[str, str],
    *,
    limits: Mapping[str, str] = SERVER_SETTINGS,
    statements: int = 100,
    admit: ServerCheck | None = None,
    owns_session: bool = False,
) -> Session:
    """
    A new connection; of several hosts to the first that takes writes.

    A pooler may refuse settings that come with the start of a session: then they are set by a statement, but only where
    *owns_session*: else they would be those of other programs, too.

    Args:
        target: Where to.
        settings: Settings of the session.
        limits: Limits that the server enforces.
        statements: How many prepared statements the connection keeps; poolers may refuse them.
        admit: Asked about each connection before it is used.
        owns_session: No pooler shares the session with others: ``refuse_pooler`` has looked.

    Raises:
        ConfigError: The DSN is malformed, or the server refuses these credentials or this database.
        UnavailableError: No server answers, or not now.
    """
    dsns = hosts_of(target.dsn)
    several = len(dsns) > 1
    role = _role_of_server(settings, several=several)
    wanted = {**limits, **settings}

    async def reach(host: Target) -> Session:
        try:
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                try:
                    connection = await _session(host, wanted, statements, role)
                except asyncpg.PostgresError as error:
                    if not (wanted and owns_session) or _REFUSES_SETTINGS not in str(error):
                        raise
                    connection = await _session(host, {}, statements, role)
                    await _set(connection, wanted)
                on_citus = await _begin(connection, limited=bool(limits), several=several)
        except (*FAILURES, ValueError) as error:
            raise _translated(error, host) from error
        try:
            if admit is not None:
                await admit(connection, host.shown, writable=several)
            if on_citus:
                await stay_with_rows(connection, host.shown)
        except BaseException:
            connection.terminate()
            raise
        return connection

    if not several:
        return await reach(target)
    tries = [partial(reach, msgspec.structs.replace(target, dsn=dsn)) for dsn in dsns]
    try:
        return await first_of(tries, Session.terminate)
    except ExceptionGroup as errors:
        raise _of_all_hosts(errors) from errors.exceptions[-1]


def _role_of_server(settings: Mapping[str, str], *, several: bool) -> SessionAttribute | None:
    """Which servers will do; None: those that the DSN says."""
    if "default_transaction_read_only" in settings:  # of the session: it says nothing of the server
        return SessionAttribute.primary if several else SessionAttribute.any
    return SessionAttribute.read_write if several else None


def _of_all_hosts(errors: ExceptionGroup[Exception]) -> Exception:
    """What to raise where no host will do: what a user must change, else what each has said."""
    for error in errors.exceptions:
        if not isinstance(error, UnavailableError):
            return error
    return UnavailableError("; ".join(str(error) for error in errors.exceptions))


async def _begin(connection: Session, *, limited: bool, several: bool) -> bool:
    """Limit both ends of TCP; whether Citus keeps the queue, which is asked where there are several hosts."""
    try:
        if _keep_alive(connection) and limited:
            await connection.execute(TCP_LIMITS)
        return several and await is_distributed(connection)
    except BaseException:
        connection.terminate()
        raise


async def _session(
    target: Target, settings: Mapping[str, str], statements: int, role: SessionAttribute | None
) -> Session:
    made: Session = await asyncpg.connect(
        as_url(target.dsn),
        timeout=CONNECT_DEADLINE_S,
        server_settings={**settings, "application_name": target.application_name},
        statement_cache_size=statements,
        max_cached_statement_lifetime=0,  # for ever: recovery after a quiet hour must not wait for planning
        connection_class=Session,
        target_session_attrs=role,
    )
    made.schema = target.schema
    return made


async def _set(connection: Session, settings: Mapping[str, str]) -> None:
    try:
        await connection.execute(STATEMENTS["set_session"].sql, [*settings], [*settings.values()])
    except BaseException:
        connection.terminate()
        raise


def _translated(error: Exception, target: Target) -> ConfigError | UnavailableError:
    if isinstance(error, TargetServerAttributeNotMatched):
        return UnavailableError(f"the database {target.shown} takes no writes: a standby, or set to be read-only")
    reason = str(error) or ("it is silent" if isinstance(error, TimeoutError) else type(error).__name__)
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in REFUSED_SQLSTATES:
        return ConfigError(f"PULSE_DSN {target.shown}: {reason}")
    if isinstance(error, (asyncpg.ClientConfigurationError, ValueError)) and not isinstance(error, OSError):
        return ConfigError(f"PULSE_DSN {target.shown}: {reason}")
    return UnavailableError(f"the database {target.shown} does not answer: {reason}")


def _keep_alive(connection: Connection[Record]) -> bool:
    """
    Have the kernel look whether the server is there.

    asyncpg leaves keepalive off, and a half-open connection would hang for ever: after 5 + 3 x 2 s it is dead.

    Returns:
        Whether it is a TCP connection.
    """
    # asyncpg offers no other way to its socket
    transport: asyncio.BaseTransport = connection._transport  # type: ignore[attr-defined] # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return False
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 5),
        (socket.TCP_KEEPINTVL, 2),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 3000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return True


class Pool:
    """
    A few connections of one kind.

    Args:
        target: Where to connect.
        size: Most connections at once.
        settings: Server settings of this kind, over SERVER_SETTINGS.
        failing: Records statements that the database refuses; pools of one process may share it.
        timelines: Timelines that the process has seen; None: the pool keeps its own.
        proved: These credentials are known to work.

    Attributes:
        usage: How many connections are in use, and how long statements take.
    """

    def __init__(
        self,
        target: Target,
        *,
        size: int,
        settings: Mapping[str, str] | None = None,
        failing: Failing | None = None,
        timelines: Timelines | None = None,
        proved: bool = False,
    ) -> None:
        self.target = target
        self._settings = settings or {}
        self.failing = failing or Failing()
        self._timelines = timelines or Timelines()
        self.usage = Usage(size)
        self._turns = Turns(size)
        self._idle: list[Session] = []
        self._standings: WeakKeyDictionary[Session, ServerTimeline] = WeakKeyDictionary()
        self._closed = False
        self._proved = proved

    @contextlib.asynccontextmanager
    async def connection(self, deadline_s: float = STATEMENT_DEADLINE_S) -> AsyncGenerator[Connection[Record]]:
        """
        A connection for the block, which is cancelled after *deadline_s*.

        Raises:
            UnavailableError: The database is away, and the last statement may or may not be committed. Or the role
                lacks a right.
            StatementTimeoutError: A lock is held for too long, or the statement took too long.
            StatementError: The database answers, and refuses the statement; or the answer cannot be read.
            ConfigError: The database refuses these credentials, and never accepted them.
        """
        connection: Session | None = None
        clean, waited, began_s = False, True, time.monotonic()
        try:
            async with asyncio.timeout(deadline_s):
                async with self._turns.turn():
                    waited = False
                    self.usage.taken()
                    try:
                        connection = self._take() or await self._connect()
                        yield connection
                        clean = True
                    except asyncpg.PostgresError as error:
                        clean = is_safe_after(error)
                        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                            self._timelines.moved()
                        raise
                    finally:
                        self.usage.given_back()
                        if connection is not None:
                            self._give_back(connection, clean=clean)
            self.usage.answered(began_s, time.monotonic())
        except UnavailableError:
            self.usage.failed(time.monotonic())
            raise
        except ConfigError:
            raise
        except Exception as error:
            if waited and isinstance(error, TimeoutError):
                message = f"no turn within {deadline_s:g} s: the database {self.target.shown} is away, or slow"
                raise UnavailableError(message) from error
            meant = error_of(error, self.failing, self.target.shown, deadline_s)
            if meant is None:
                raise
            if isinstance(error, TimeoutError):
                self._drop_idle()  # to the same server: each of them would have to be waited for
            if not isinstance(meant, (StatementTimeoutError, StatementError)):
                self.usage.failed(time.monotonic())
            raise meant from error

    async def _connect(self) -> Session:
        try:
            connection = await connect(self.target, self._settings, admit=self._admit, owns_session=True)
        except ConfigError as error:
            if self._proved:  # these settings worked before: a password is being changed, or a database restored
                raise UnavailableError(error.message) from error
            raise
        self._proved = True
        connection.failing = self.failing
        return connection

    async def _admit(self, connection: Session, shown: str, *, writable: bool) -> None:
        self._standings[connection] = await self._timelines.admit(connection, shown, writable=writable)

    def _take(self) -> Session | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed() and not self._is_old(connection):
                return connection
            connection.terminate()
        return None

    def _is_old(self, connection: Session) -> bool:
        """Whether its server is on an outdated timeline, was a standby, or is a node that the queue has left."""
        if connection.home_since_s is not None and connection.home_since_s < self._timelines.moved_s:
            return True
        standing = self._standings.get(connection)
        return standing is not None and (standing.timeline is None or self._timelines.is_old(standing))

    def _give_back(self, connection: Session, *, clean: bool) -> None:
        if clean and not self._closed and not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append(connection)
        else:
            connection.terminate()

    async def open(self) -> None:
        """Make the first connection now, so that a wrong DSN shows at start."""
        async with self.connection():
            pass

    def close(self) -> None:
        """Terminate the idle connections now and the others when they come back."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().terminate()
