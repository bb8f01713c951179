"""
The settings of pulse: names, allowed values, and where each value comes from.

An option wins over the environment (``PULSE_*``), the environment over the config file, the file over the default.
The whole is checked at once, before anything starts: one ``ConfigError`` names every setting that is wrong, its value
and what is allowed. Other variables ``PULSE_*`` are ignored: PulseAudio has such names, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from pulse.common.backoff import ALLOWED, MAX_BACKOFF, PATTERN, in_seconds
from pulse.common.dsn import is_dsn, redact_dsn
from pulse.common.duration import ABOVE_ZERO, MAX_SECONDS, ZERO_OR_MORE, seconds_of
from pulse.common.json_text import learn
from pulse.common.text import similar_names
from pulse.errors import ConfigError
from pulse.routes import TABLES, Routes, parse
from pulse.security.grants import ALLOWED as GRANTS_ALLOWED
from pulse.security.grants import PATTERN as GRANTS_PATTERN
from pulse.security.redaction import ALLOWED as REDACT_ALLOWED
from pulse.security.redaction import PATTERN as REDACT_PATTERN
from pulse.security.schema_name import ALLOWED as SCHEMA_ALLOWED
from pulse.security.schema_name import is_allowed as is_schema
from pulse.system.directories import MAX_SOCKET_PATH_BYTES
from pulse.system.sockets import addresses

__all__ = [
    "Settings",
    "dump",
    "keeps",
    "load",
    "load_routes",
    "load_with_routes",
    "redact_dsn",
    "restore",
    "secrets_in",
]

DEFAULT_FILE: Final = "pulse.toml"
MIN_BEATS_PER_LEASE: Final = 3  # a lease outlives two lost beats and a slow commit
KEEP_S: Final = 7 * 86400.0  # completed and canceled jobs
KEEP_DEAD_S: Final = 30 * 86400.0
_ROUNDING: Final = 1e-9  # 3 * 0.1 is a little more than 0.3
_SECRET: Final = frozenset({"dsn", "auth_users"})
_CONCEALED: Final = "***"
_MAX_SHOWN: Final = 80  # characters of a wrong value in a message

# The description of each type is shown in errors; 1e9 seconds (31 years) keep every sum of times finite.
_Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS, description=ABOVE_ZERO)]
_SecondsOrZero = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description=ZERO_OR_MORE)]
_Count = Annotated[int, Meta(ge=1, le=10_000, description="a whole number from 1 to 10000 is allowed")]
_Processes = Annotated[int, Meta(ge=1, le=1024, description="a whole number from 1 to 1024 is allowed")]
_Spares = Annotated[int, Meta(ge=0, le=8, description="a whole number from 0 to 8 is allowed")]
_Dsn = Annotated[
    str,
    Meta(description="a postgresql:// URL (special characters as %XX) or keywords (host=… dbname=…) are allowed"),
]
_HostId = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z", description="1 to 64 of the characters A-Z a-z 0-9 . _ - are allowed"),
]
_UserName = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9._-]{0,31}\Z", description="the name of a system user is allowed")
]
_Listen = Annotated[
    str,
    Meta(
        pattern=r"\A(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}\Z",
        description="host:port is allowed, with a port up to 65535 (0: any free one)",
    ),
]
_Metrics = Annotated[
    str,
    Meta(
        pattern=r"\A([0-9]{1,5}|/[^\0]{1,106}|(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):[0-9]{1,5})\Z",
        description="a port of 127.0.0.1, host:port, or the whole path of a Unix socket (at most 107 bytes) is allowed",
    ),
]
_UiListen = Annotated[
    str,
    Meta(
        pattern=r"\A(unix:/.+|(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5})\Z",
        description="host:port or unix:/path is allowed",
    ),
]
_AppName = Annotated[
    str, Meta(pattern=r"\A[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z", description="MODULE:APP is allowed, as in shop.jobs:app")
]
_Grants = Annotated[str, Meta(pattern=GRANTS_PATTERN, description=GRANTS_ALLOWED)]
_Redact = Annotated[str, Meta(pattern=REDACT_PATTERN, description=REDACT_ALLOWED)]
_FilePath = Annotated[Path, Meta(description="a path is allowed")]
_SchemaName = Annotated[str, Meta(description=SCHEMA_ALLOWED)]
_Flag = Annotated[bool, Meta(description="1 or 0 (true or false) is allowed")]
_Backoff = Annotated[str, Meta(pattern=PATTERN, max_length=MAX_BACKOFF, description=f"{ALLOWED} is allowed")]
_LogLevel = Literal["debug", "info", "warning", "error", "critical"]
_LogFormat = Literal["json", "console"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    Every setting, checked; ``load`` makes one from what the user gave.

    None means: not set; the comment gives the effect.
    """

    dsn: _Dsn | None = None  # the embedded PostgreSQL
    schema: _SchemaName | None = None  # pulse
    runtime_dir: _FilePath | None = None  # places.server_runtime_dir chooses
    state_dir: _FilePath | None = None  # places.server_state_dir chooses
    config: _FilePath | None = None  # the file that was read; none was there
    log_level: _LogLevel = "info"  # one line per event that an operator acts on
    log_format: _LogFormat | None = None  # console on a terminal, json elsewhere
    lease_s: _Seconds = 30.0  # 3 beats: survives 2 lost ones and a slow commit
    heartbeat_s: _Seconds = 10.0  # a third of the lease (of a shorter one, too, when not set); one statement per beat
    sweep_s: _Seconds = 10.0  # a lapsed lease is seen at most this long after it lapsed
    poll_s: _Seconds = 0.5  # finds what a lost hint has missed
    batch: _Count = 500  # claims of 500 reach the database's ceiling; of 100, a third of it
    backoff: _Backoff = "quadratic"  # 1, 4, 9, 16 s: five tries outlast half a minute of trouble elsewhere
    max_attempts: _Count = 5
    max_crashes: _Count = 3  # deaths of the worker that one job may cause; two can be bad luck
    proof_of_death: _Flag = True  # off: leases only, as across hosts
    obey_s: _Seconds = 5.0  # for a cancelled handler to end; then its process is killed
    drain_s: _SecondsOrZero = 30.0  # below the 90 s after which systemd kills
    retention_s: _SecondsOrZero | None = None  # completed and canceled 7 days, dead letters 30 days
    host_id: _HostId | None = None  # the machine id
    embedded_user: _UserName | None = None  # as root: the system user pulse
    listen: _Listen | None = None  # no TCP
    metrics: _Metrics | None = None  # no Prometheus endpoint
    ui_listen: _UiListen | None = None  # 127.0.0.1:8470
    tls_cert: _FilePath | None = None
    tls_key: _FilePath | None = None
    tls_client_ca: _FilePath | None = None  # clients need no certificate
    listen_insecure: _Flag = False  # True: allow TCP without TLS, or without logins
    auth_users: str | None = None
    allow_users: _Grants | None = None  # besides the server's own account and root
    allow_groups: _Grants | None = None
    redact: _Redact | None = None  # nothing is redacted
    connect_timeout_s: _SecondsOrZero = 0.0  # where there is no server, waiting for one is rarely what is meant
    app: _AppName | None = None  # the supervisor starts no pool
    processes: _Processes = 1
    concurrency: _Count = 10  # handlers mostly wait for others
    spares: _Spares = 1  # per pool; most deaths are single, and each costs the memory of an idle process
    preload: _Flag = True  # off: an app that cannot bear a fork, and does not show it

    def __repr__(self) -> str:
        """The settings that differ from their defaults, without secrets, for logs."""
        shown: dict[str, object] = {name: getattr(self, name) for name in self.__struct_fields__}
        shown = {name: _harmless(name, value) for name, value in shown.items() if value != _FIELDS[name].default}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(Settings)}
_SETTABLE: Final = tuple(name for name in _FIELDS if name != "config")  # that one is found before any file is read
_OPTIONS: Final = {"metrics": "--listen"}  # all others have the setting's name


class _SettingInput(msgspec.Struct, frozen=True):
    """A value as the user wrote it, its name in messages, and the base of relative paths."""

    value: object
    label: str
    base: Path


def load(
    env: Mapping[str, str],
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """
    Read every source, check the whole, and return the settings.

    Args:
        env: The environment. A variable that is set to nothing counts as unset.
        file: The config file that an option names, else ``PULSE_CONFIG``, else ``pulse.toml`` here if there is one.
        overrides: Options by the settings' names; None means that the option was not given.

    Returns:
        The settings; their paths are absolute.

    Raises:
        ConfigError: Something is not allowed; one line for each problem.
    """
    return load_with_routes(env, file, overrides)[0]


def load_with_routes(
    env: Mapping[str, str], file: Path | None = None, overrides: Mapping[str, object] | None = None
) -> tuple[Settings, Routes]:
    """The settings as of ``load``, and the queues that are in the same file, as of ``load_routes``; read once."""
    path, problems = _find_file(env, file)
    given: dict[str, _SettingInput] = {}
    routes = Routes({}, {})
    if path is not None:
        given, routes, file_problems = _read_file(path)
        problems += file_problems
    given |= _from_env(env) | _from_options(overrides or {})
    values: dict[str, object] = {} if path is None else {"config": path}
    for name in filter(given.__contains__, _SETTABLE):
        value, problem = _convert(name, given[name])
        if problem is None:
            values[name] = value
        else:
            problems.append(problem)
    if "heartbeat_s" not in given and isinstance(lease_s := values.get("lease_s"), float):
        values["heartbeat_s"] = min(_FIELDS["heartbeat_s"].default, lease_s / MIN_BEATS_PER_LEASE)
    learn(Settings)
    settings = msgspec.convert(values, Settings)
    is_sound = {name for name in _SETTABLE if name in values or name not in given}
    problems += _relations(settings, given, is_sound)
    if problems:
        raise ConfigError("\n".join(problems))
    return settings, routes


def load_routes(
    file: str | PathLike[str] | None = None, env: Mapping[str, str] = os.environ, *, needed: bool = True
) -> Routes:
    """
    The queues in the config file, and the routes of topics to them.

    Args:
        file: The config file; None: ``PULSE_CONFIG``, else ``pulse.toml`` here.
        env: The environment; by default this process's.
        needed: Whether there have to be queues; else a program that has one server goes on without.

    Raises:
        ConfigError: There is no such file, it has no queues, or one of them is wrong; one line for each problem.
    """
    path, problems = _find_file(env, None if file is None else Path(file), "file")
    table: Mapping[str, object] = {}
    if path is not None:
        table, problems = _read_table(path)
    routes, wrong = parse(table, path or Path())
    if needed and not (problems or wrong or routes.queues):
        wrong = [f"{path or f'{DEFAULT_FILE} here'} has no queues: [queues.NAME] with a server is needed for each"]
    if problems or wrong:
        raise ConfigError("\n".join(problems + wrong))
    return routes


def secrets_in(path: Path) -> list[str]:
    """The secret settings in the config file at *path*."""
    given, _, _ = _read_file(path)
    return [name for name, one in given.items() if _harmless(name, one.value) != one.value]


def dump(settings: Settings) -> dict[str, object]:
    """*settings* as plain values that a frame can carry; secrets included. ``restore`` is the inverse."""
    plain: dict[str, object] = msgspec.to_builtins(settings, enc_hook=str)
    return plain


def restore(plain: Mapping[str, object]) -> Settings:
    """
    The settings that ``dump`` took apart.

    Raises:
        ConfigError: *plain* does not come from a ``dump`` of this version.
    """
    try:
        return msgspec.convert(dict(plain), Settings, dec_hook=lambda kind, value: kind(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"the settings handed over are not understood: {error}") from error


def _find_file(env: Mapping[str, str], option: Path | None, name: str = "--config") -> tuple[Path | None, list[str]]:
    """The config file to read, None without one; a named file must exist."""
    text = env.get("PULSE_CONFIG", "").strip()
    label, named = (name, option) if option is not None else ("PULSE_CONFIG", Path(text) if text else None)
    if named is None:
        custom = Path.cwd() / DEFAULT_FILE
        return (custom if custom.is_file() else None), []
    if named.is_file():
        return named.absolute(), []
    return None, [f"{label} is {_shown(str(named))}: the path of a file that exists is allowed"]


def _read_file(path: Path) -> tuple[dict[str, _SettingInput], Routes, list[str]]:
    table, problems = _read_table(path)
    known = {key: value for key, value in table.items() if key in _SETTABLE}
    problems += [_unknown(key, path) for key in table if key not in {*_SETTABLE, *TABLES}]
    routes, wrong = parse(table, path)
    given = {key: _SettingInput(value, f"{key} in {path}", path.parent) for key, value in known.items()}
    return given, routes, problems + wrong


def _read_table(path: Path) -> tuple[dict[str, object], list[str]]:
    import tomllib  # only where there is a file: it takes 10 ms

    try:
        return tomllib.loads(path.read_text("utf-8")), []
    except OSError as error:
        return {}, [f"config file {path} cannot be read: {error.strerror}"]
    except ValueError as error:  # TOMLDecodeError names line and column; UnicodeDecodeError the byte
        return {}, [f"config file {path} is not TOML: {error}"]


def _unknown(key: str, path: Path) -> str:
    near = similar_names(key.lower().removeprefix("pulse_"), _SETTABLE, most=1, least=0)
    return f"{key} in {path} is no setting; the nearest that is: {near[0]}"


def _from_env(env: Mapping[str, str]) -> dict[str, _SettingInput]:
    texts = {name: env.get(_variable(name), "").strip() for name in _SETTABLE}
    return {name: _SettingInput(text, _variable(name), Path.cwd()) for name, text in texts.items() if text}


def _from_options(overrides: Mapping[str, object]) -> dict[str, _SettingInput]:
    if strangers := overrides.keys() - set(_SETTABLE):
        raise TypeError(f"no such setting: {', '.join(sorted(strangers))}")
    return {
        name: _SettingInput(value, _OPTIONS.get(name, f"--{name.replace('_', '-')}"), Path.cwd())
        for name, value in overrides.items()
        if value is not None
    }


def _convert(name: str, given: _SettingInput) -> tuple[object, str | None]:
    """The value in the setting's own type, or what is wrong with it."""
    kind = _without_none(_FIELDS[name].type)
    value = str(given.value) if isinstance(given.value, Path) else given.value
    if isinstance(value, str) and get_origin(kind) is Literal:
        value = value.lower()

    def make_path(_kind: type, text: object) -> Path:
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError
        return given.base / text

    try:
        meant = _meant(name, value) if isinstance(value, str) else value
        converted = msgspec.convert(meant, kind, strict=False, dec_hook=make_path)
    except msgspec.ValidationError:
        converted = None
    if converted is None or not _CHECKS.get(name, _anything)(converted):
        return None, f"{given.label} is {_shown(_harmless(name, value))}: {_allowed(kind)}"
    return converted, None


def _meant(name: str, text: str) -> object:
    """*text* with durations as seconds."""
    if name.endswith("_s"):
        with suppress(ValueError):
            return seconds_of(text, zero=True)
    return in_seconds(text) if name == "backoff" else text


def _harmless(name: str, value: object) -> object:
    """*value* without secrets; if that is unclear, nothing of it."""
    if name == "dsn" and isinstance(value, str):
        return redact_dsn(value)
    return _CONCEALED if name in _SECRET else value


def _relations(settings: Settings, given: Mapping[str, _SettingInput], is_sound: set[str]) -> list[str]:
    """Contradictions between settings that are each valid."""
    problems: list[str] = []

    def label(name: str) -> str:
        return given[name].label if name in given else _variable(name)

    lease_s, heartbeat_s = settings.lease_s, settings.heartbeat_s
    too_short = lease_s < MIN_BEATS_PER_LEASE * heartbeat_s * (1 - _ROUNDING)
    if too_short and {"lease_s", "heartbeat_s"} <= is_sound:
        problems.append(
            f"{label('lease_s')} is {lease_s:g} and {label('heartbeat_s')} is {heartbeat_s:g}: "
            f"a lease of at least {MIN_BEATS_PER_LEASE} heartbeats is allowed"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None) and {"tls_cert", "tls_key"} <= is_sound:
        there, missing = ("tls_cert", "tls_key") if settings.tls_key is None else ("tls_key", "tls_cert")
        problems.append(f"{label(there)} is set and {label(missing)} is not: both or neither is allowed")
    if settings.tls_client_ca is not None and settings.tls_cert is None and {"tls_client_ca", "tls_cert"} <= is_sound:
        problems.append(
            f"{label('tls_client_ca')} is set and {label('tls_cert')} is not: clients show certificates behind TLS only"
        )
    return problems


def _has_possible_port(listen: str) -> bool:
    return addresses.split(listen) is not None


def _is_address(metrics: str) -> bool:
    if "/" in metrics:
        return len(metrics.encode()) <= MAX_SOCKET_PATH_BYTES
    return int(metrics) <= addresses.MAX_PORT if metrics.isdecimal() else _has_possible_port(metrics)


def _anything(_value: object) -> bool:
    return True


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "dsn": is_dsn,
    "listen": _has_possible_port,
    "metrics": _is_address,
    "schema": is_schema,
}


def keeps(retention_s: float | None) -> tuple[float, float]:
    """How long completed and canceled jobs are kept, and dead letters, which never get less than the default."""
    return (KEEP_S, KEEP_DEAD_S) if retention_s is None else (retention_s, max(retention_s, KEEP_DEAD_S))


def _variable(name: str) -> str:
    return f"PULSE_{name.upper()}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _without_none(kind: Any) -> Any:  # noqa: ANN401 -- annotations are objects of no common type
    """X of ``X | None``, else *kind* itself: users cannot write None."""
    options = [option for option in get_args(kind) if option is not NoneType]
    return options[0] if NoneType in get_args(kind) else kind


def _allowed(kind: Any) -> str:  # noqa: ANN401 -- the same
    """The sentence that says what a person may write for *kind*."""
    if get_origin(kind) is Literal:
        return f"{' or '.join(get_args(kind))} is allowed"
    described = (meta.description for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta))
    return next((text for text in described if text), "text is allowed")
