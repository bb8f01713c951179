"""The kinds of values that options and arguments take; a wrong one is refused with the value and what is allowed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import click

from pulse.common.duration import seconds_of
from pulse.common.ids import MIN_PREFIX, hex_digits
from pulse.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click import Context, Parameter
    from click.shell_completion import CompletionItem

    StrType = click.ParamType[str]
    FloatType = click.ParamType[float]
    BytesType = click.ParamType[bytes]
    _WordType = click.ParamType[str | bytes]
else:  # click before 8.3 has no type arguments
    StrType = FloatType = BytesType = _WordType = click.ParamType

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")
_ID_DIGITS: Final = 32
_MAX_SHOWN: Final = 60  # characters of a wrong value in a message
ACTORS: Final = ("dispatcher", "scheduler", "watchdog", "pause", "pool", "metrics")  # the supervisor knows which exist
STATUSES: Final = ("PENDING", "RUNNING", "RETRYING", "COMPLETED", "DEAD_LETTERED", "CANCELED")


class DurationParam(FloatType):
    """A length of time, as ``90``, ``5m`` or ``2h30m``, seconds inside; *zero*: whether 0 is one."""

    name = "duration"

    def __init__(self, *, zero: bool) -> None:
        self._zero = zero

    def convert(self, value: str | float, param: Parameter | None, ctx: Context | None) -> float:
        """The seconds."""
        try:
            return seconds_of(str(value), zero=self._zero)
        except ValueError as error:
            raise _refused(value, f"{error}.", param, ctx) from None


class TimeParam(FloatType):
    """A point in time; Unix seconds inside."""

    name = "iso-time"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> float:
        """The Unix seconds of an ISO 8601 text; without a zone it is UTC."""
        try:
            moment = datetime.fromisoformat(value.strip())
            return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            allowed = "a time in ISO 8601 is allowed, as in 2030-01-31T12:00:00Z; without a zone it is UTC"
            raise _refused(value, allowed, param, ctx) from None


class IdParam(BytesType):
    """A UUID; its 16 bytes inside."""

    name = "uuid"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> bytes:
        """The bytes of the UUID."""
        try:
            return UUID(value.strip()).bytes
        except ValueError:
            allowed = "a UUID is allowed, as in 0190163d-8694-739b-aea5-966c26f8ad91"
            raise _refused(value, allowed, param, ctx) from None


class JobParam(_WordType):
    """A job's id, 16 bytes inside; or the digits with which it begins, as text."""

    name = "id"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str | bytes:
        """The bytes of a whole id, else the hexadecimal digits."""
        digits = hex_digits(value.strip())
        if digits is None or len(digits) < MIN_PREFIX:
            allowed = f"the id of a job is allowed, or its first characters, {MIN_PREFIX} or more, as in 0190163d-8694"
            raise _refused(value, allowed, param, ctx)
        return bytes.fromhex(digits) if len(digits) == _ID_DIGITS else digits


class ScheduleParam(_WordType):
    """A schedule's id, 16 bytes inside; or its key, or the characters with which its id begins, as text."""

    name = "schedule"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str | bytes:
        """The bytes of a whole id, else the text."""
        try:
            return UUID(value.strip()).bytes
        except ValueError:
            return TOPIC.convert(value, param, ctx)


class StatusParam(StrType):
    """A job's status, in any case."""

    name = "status"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        """The status as the server writes it."""
        if value.upper() in STATUSES:
            return value.upper()
        raise _refused(value, f"{', '.join(STATUSES)} are allowed.", param, ctx)

    def shell_complete(self, ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 -- click's
        """The statuses that begin so."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(status) for status in STATUSES if status.startswith(incomplete.upper())]


class TextParam(StrType):
    """Text of 1 to *longest* characters."""

    def __init__(self, name: str, longest: int) -> None:
        self.name = name
        self._longest = longest

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        """The text itself."""
        is_storable = "\0" not in value and _is_unicode(value)
        if is_storable and 1 <= len(value) <= self._longest:
            return value
        raise _refused(value, f"1 to {self._longest} characters of UTF-8 are allowed.", param, ctx)


class BackoffParam(StrType):
    """How long to wait after a failed try, in one word."""

    name = "backoff"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        """The word, with its durations in seconds."""
        from pulse.common.backoff import ALLOWED, in_seconds, is_backoff

        word = in_seconds(value)
        if is_backoff(word):
            return word
        raise _refused(value, f"allowed are {ALLOWED}.", param, ctx)


class JsonParam(StrType):
    """A job's args, or the payload of a signal, which is any JSON value; the text inside, as it was written."""

    name = "json"

    def __init__(self, *, any_value: bool) -> None:
        self._any_value = any_value

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        """The text itself; ``-`` is left to the command."""
        from pulse.ops.json_input import check_args, check_payload

        if value != "-":
            try:
                (check_payload if self._any_value else check_args)(value)
            except BadRequestError as error:
                raise _refused(value, f"{error.message}.", param, ctx) from None
        return value


ID: Final = IdParam()
JOB: Final = JobParam()
SCHEDULE: Final = ScheduleParam()
TIME: Final = TimeParam()
DURATION: Final = DurationParam(zero=False)
DURATION_OR_ZERO: Final = DurationParam(zero=True)
BACKOFF: Final = BackoffParam()
ARGS: Final = JsonParam(any_value=False)
PAYLOAD: Final = JsonParam(any_value=True)
NAME: Final = TextParam("name", 200)
TOPIC: Final = TextParam("topic", 200)
KEY: Final = TextParam("key", 500)
GROUP: Final = TextParam("group", 200)
SIGNAL: Final = TextParam("signal", 200)
SIGNAL_KEY: Final = TextParam("key", 200)
REASON: Final = TextParam("text", 1000)
TRIES: Final = click.IntRange(1, 10_000)
PRIORITY: Final = click.IntRange(-100, 100)
STATUS: Final = StatusParam()


def _refused(value: object, allowed: str, param: Parameter | None, ctx: Context | None) -> click.BadParameter:
    return click.BadParameter(f"{_shown(value)}: {allowed}", ctx, param)


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str) and not _is_unicode(value) else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_dsn(otherwise: str) -> Callable[[FunctionT], FunctionT]:
    """The options for the database and the schema in it; *otherwise*: where it is looked for behind the settings."""
    dsn = click.option(
        "--dsn", metavar="DSN", show_default=f"PULSE_DSN, else dsn in the config file{otherwise}", help="The database."
    )
    schema = click.option(
        "--schema", metavar="NAME", show_default="PULSE_SCHEMA, else pulse", help="The schema in it that has the queue."
    )
    return lambda command: dsn(schema(command))


with_full: Final = click.option("--full", is_flag=True, help="Whole ids, also on a narrow terminal.")

with_config: Final = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="PULSE_CONFIG, else pulse.toml here",
    help="The config file.",
)


def completing(names: Sequence[str]) -> Callable[[Context, Parameter, str], list[CompletionItem]]:
    """What a shell offers for a word that is one of *names*, though others are taken, too."""

    def complete(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete
