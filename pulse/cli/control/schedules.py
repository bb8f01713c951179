"""``pulse ctl schedules``: list, get, create, update, delete, pause, resume, trigger, preview."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final, TypedDict, TypeVar, Unpack
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from pulse.cli.jobs.page import CONCEALED, moment
from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.lookup import IdWord, schedule_of
from pulse.cli.options import (
    ARGS,
    DURATION,
    DURATION_OR_ZERO,
    GROUP,
    ID,
    KEY,
    NAME,
    PRIORITY,
    SCHEDULE,
    TIME,
    TOPIC,
    TRIES,
    TextParam,
    with_full,
)
from pulse.cli.output.render import Cell, Column, Line, Screen, Table, foreign, id_cells, write_document
from pulse.cli.server import current_server
from pulse.common.text import ago, duration, iso, printable
from pulse.job import CATCH_UPS, OVERLAPS
from pulse.ops.job_text import key_words, pretty
from pulse.protocol.answers import Identity, part, read
from pulse.protocol.schedules import PreviewAnswer, ScheduleInfo, SchedulePageAnswer
from pulse.security.codec import shown_instead

_LABEL_WIDTH: Final = 11
_COLUMNS: Final = (
    Column("id"),
    Column("name", least=8),
    Column("topic", least=6, leave_out=3),
    Column("when", least=10),
    Column("next", right=True),
    Column("last", right=True, leave_out=2),
)
_KEY: Final = Column("key", least=6, leave_out=1)  # of those that code declares, where any of them is
_UNSET: Final = {  # option -> key of the wire
    "topic": "topic", "timezone": "timezone", "max-attempts": "max_attempts", "timeout": "timeout_s",
    "starts": "starts_at", "ends": "ends_at", "jitter": "jitter_s", "group": "group_key", "unique": "unique",
    "unique-until": "unique_until", "on-conflict": "on_conflict",
}  # fmt: skip


class TimingOptions(TypedDict):
    """The options that say when a schedule fires."""

    cron: str | None
    timezone: str | None
    every: float | None
    at: float | None


class _RuleOptions(TimingOptions):
    topic: str | None
    max_attempts: int | None
    timeout: float | None
    starts: float | None
    ends: float | None
    jitter: float | None
    catch_up: str | None
    overlap: str | None
    group: str | None
    unique: str | None
    unique_until: str | None
    on_conflict: str | None


class _CreateOptions(_RuleOptions):
    args: str
    priority: int


class _UpdateOptions(_RuleOptions):
    name: str | None
    args: str | None
    priority: int | None
    unset: tuple[str, ...]


CommandT = TypeVar("CommandT", bound=Callable[..., object])


def _rules(command: CommandT) -> CommandT:
    """The options that create and update have in common."""
    for option in (
        click.option("--on-conflict", type=click.Choice(["skip", "replace"]), help="While another job has the key."),
        click.option("--unique-until", type=click.Choice(["start", "end"]), help="How long a job keeps the key."),
        click.option("--unique", type=KEY, metavar="KEY", help="Unique key of its jobs: one of them at a time."),
        click.option("--group", type=GROUP, metavar="GROUP", help="Group of its jobs."),
        click.option("--overlap", type=click.Choice(OVERLAPS), help="While its earlier job is not finished."),
        click.option("--catch-up", type=click.Choice(CATCH_UPS), help="Which missed occurrences fire."),
        click.option(
            "--jitter", type=DURATION_OR_ZERO, metavar="DURATION", help="Fire later by up to that, at most 1d."
        ),
        click.option("--ends", type=TIME, metavar="ISO-TIME", help="No occurrence after it."),
        click.option("--starts", type=TIME, metavar="ISO-TIME", help="No occurrence before it."),
        click.option("--timeout", type=DURATION, metavar="DURATION", help="Longest run of one attempt."),
        click.option("--max-attempts", type=TRIES, metavar="N", help="Tries before the dead letter."),
        click.option("--topic", type=TOPIC, metavar="TOPIC", help="Queue of its jobs; the handler's by default."),
        click.option("--at", type=TIME, metavar="ISO-TIME", help="Fire once, then; without a zone it is UTC."),
        click.option(
            "--every", type=DURATION, metavar="DURATION", help="Fire so often, as 90, 5m or 2h30m; at least 0.1."
        ),
        click.option(
            "--timezone", type=TextParam("zone", 100), metavar="TZ", help="Time zone of --cron; UTC by default."
        ),
        click.option(
            "--cron",
            type=TextParam("expr", 200),
            metavar="EXPR",
            help="Five fields, six with seconds first, or @daily.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def schedules() -> None:
    """List, show, create, change, pause, trigger, preview and delete schedules."""


@schedules.command("list", epilog=examples("pulse ctl schedules list"))
@click.option("--limit", type=click.IntRange(1, 1000), default=100, metavar="N", help="Most to list, 1 to 1000.")
@click.option("--after", metavar="CURSOR", help="Go on behind a page: the cursor that it ended with.")
@click.option("--json", "as_json", is_flag=True, help='Print {"schedules": [...], "next": cursor or null}.')
@with_full
def list_schedules(limit: int, after: str | None, *, full: bool, as_json: bool) -> None:
    """List schedules, newest first."""
    body: dict[str, object] = {"limit": limit}
    if after is not None:
        body["after"] = after
    answer = current_server().ask("schedules.list", body, repeatable=True)
    if as_json:
        write_document(answer)
        return
    page = read(SchedulePageAnswer, answer)
    screen = Screen()
    screen.table_or(schedules_table(page, time.time(), None if full else screen.width), "no schedules")
    if page.next is not None:
        click.echo(f"more: repeat with --after {page.next}", err=True)


@schedules.command("get", epilog=examples("pulse ctl schedules get 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@click.option("--json", "as_json", is_flag=True, help="Print the columns of pulse.schedules by name.")
def get_schedule(schedule: IdWord, *, as_json: bool) -> None:
    """Show a schedule."""
    _show(current_server().ask("schedules.get", {"id": schedule_of(schedule)}, repeatable=True), as_json=as_json)


@schedules.command(
    epilog=examples(
        "pulse ctl schedules create report --cron '30 6 * * 1-5' --timezone Europe/Berlin",
        'pulse ctl schedules create poll --every 15 --args \'{"source": "mail"}\'',
        "pulse ctl schedules create launch --at 2030-01-31T12:00:00Z",
    )
)
@click.argument("name", type=NAME)
@_rules
@click.option("--args", type=ARGS, default="{}", metavar="JSON", help="Keyword arguments of the handler.")
@click.option("--priority", type=PRIORITY, default=0, metavar="P", help="Higher first.")
@click.option("--id", "schedule_id", type=ID, metavar="UUID", help="Create it under this id.")
@click.option("--json", "as_json", is_flag=True, help="Print the schedule as JSON.")
def create(name: str, schedule_id: bytes | None, *, as_json: bool, **options: Unpack[_CreateOptions]) -> None:
    """Create a schedule that submits jobs to the handler NAME; give one of --cron, --every and --at."""
    from pulse.common.ids import uuid7

    body: dict[str, object] = {
        **when_body(options),
        **_rules_body(options),
        "name": name,
        "args": options["args"],
        "priority": options["priority"],
        "id": uuid7().bytes if schedule_id is None else schedule_id,
    }
    given = {key: value for key, value in body.items() if value is not None}
    current_server().route(options["topic"])
    current_server().check_topic(options["topic"])
    _show(current_server().ask("schedules.create", given), as_json=as_json)


@schedules.command(
    epilog=examples(
        "pulse ctl schedules update 0190163d-8694-739b-aea5-966c26f8ad91 --cron '0 7 * * *'",
        "pulse ctl schedules update 0190163d-8694-739b-aea5-966c26f8ad91 --overlap skip --priority 5",
        "pulse ctl schedules update 0190163d-8694-739b-aea5-966c26f8ad91 --unset timeout --unset ends",
    )
)
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@_rules
@click.option("--name", type=NAME, help="Handler of its jobs.")
@click.option("--args", type=ARGS, metavar="JSON", help="Keyword arguments of the handler.")
@click.option("--priority", type=PRIORITY, metavar="P", help="Higher first.")
@click.option("--unset", type=click.Choice(list(_UNSET)), multiple=True, help="As if never given; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the schedule as JSON.")
def update(schedule: IdWord, *, as_json: bool, **options: Unpack[_UpdateOptions]) -> None:
    """Change a schedule; what is not given stays. It keeps its place in time unless when it occurs is changed."""
    kinds = [f"--{kind}" for kind in ("cron", "every", "at") if options[kind] is not None]
    if len(kinds) > 1:
        raise click.UsageError(f"{' and '.join(kinds)} given: at most one of --cron, --every and --at is allowed.")
    for option in options["unset"]:
        if options[option.replace("-", "_")] is not None:  # type: ignore[literal-required]
            raise click.UsageError(f"--{option} is given, and --unset {option}: one of them is allowed.")
    body: dict[str, object] = {
        **{kind: options[kind] for kind in ("cron", "timezone", "every", "at")},
        **_rules_body(options),
        "name": options["name"],
        "args": options["args"],
        "priority": options["priority"],
        "id": schedule_of(schedule),
    }
    given = {key: value for key, value in body.items() if value is not None}
    given |= dict.fromkeys(_UNSET[option] for option in options["unset"])
    current_server().check_topic(options["topic"])
    with current_server().client() as client:  # not by its new topic: the schedule is where it is
        _show(client.request("schedules.update", given), as_json=as_json)


@schedules.command(epilog=examples("pulse ctl schedules pause 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@click.option("--json", "as_json", is_flag=True, help="Print the schedule as JSON.")
def pause(schedule: IdWord, *, as_json: bool) -> None:
    """Let a schedule fire nothing until it is resumed."""
    _show(current_server().ask("schedules.pause", {"id": schedule_of(schedule)}, repeatable=True), as_json=as_json)


@schedules.command(epilog=examples("pulse ctl schedules resume 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@click.option("--json", "as_json", is_flag=True, help="Print the schedule as JSON.")
def resume(schedule: IdWord, *, as_json: bool) -> None:
    """Let a schedule go on; of what was missed meanwhile, its --catch-up decides."""
    _show(current_server().ask("schedules.resume", {"id": schedule_of(schedule)}, repeatable=True), as_json=as_json)


@schedules.command(epilog=examples("pulse ctl schedules trigger 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@click.option("--json", "as_json", is_flag=True, help='Print {"id"} of the job.')
def trigger(schedule: IdWord, *, as_json: bool) -> None:
    """Submit a job of a schedule now, beside its occurrences; prints the job's id."""
    from pulse.common.ids import uuid7

    body = {"id": schedule_of(schedule), "job_id": uuid7().bytes}
    answer = current_server().ask("schedules.trigger", body, repeatable=True)
    if as_json:
        write_document(answer)
    else:
        click.echo(str(UUID(bytes=read(Identity, answer).id)))


@schedules.command(epilog=examples("pulse ctl schedules preview 0190163d-8694-739b-aea5-966c26f8ad91 --count 5"))
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@click.option("--count", type=click.IntRange(1, 1000), default=10, metavar="N", help="How many, 1 to 1000.")
@click.option("--json", "as_json", is_flag=True, help='Print {"times": [...], "timezone"}, the times in UTC.')
def preview(schedule: IdWord, count: int, *, as_json: bool) -> None:
    """Show when a schedule occurs next, in its time zone."""
    body = {"id": schedule_of(schedule), "count": count}
    answer = current_server().ask("schedules.preview", body, repeatable=True)
    found = read(PreviewAnswer, answer)
    if as_json:
        write_document(answer)
        return
    for one in found.times:
        click.echo(local_iso(one, found.timezone))
    if not found.times:
        Screen().lines([[Cell("never again", "dim")]])


@schedules.command(epilog=examples("pulse ctl schedules delete 0190163d-8694-739b-aea5-966c26f8ad91"))
@click.argument("schedule", metavar="ID", type=SCHEDULE)
@click.option("--json", "as_json", is_flag=True, help='Print {"id"} of what was deleted.')
def delete(schedule: IdWord, *, as_json: bool) -> None:
    """Delete a schedule. Jobs that it has submitted stay."""
    schedule_id = schedule_of(schedule)
    answer = current_server().ask("schedules.delete", {"id": schedule_id})
    if as_json:
        write_document({"id": schedule_id, **answer})
    else:
        Screen().lines([[Cell(f"deleted {UUID(bytes=schedule_id)}")]])


def when_body(when: TimingOptions) -> dict[str, object]:
    """
    When to fire, as the wire wants it.

    Raises:
        click.UsageError: Not exactly one of the kinds is given, or a time zone without a cron expression.
    """
    kinds = {"--cron": when["cron"], "--every": when["every"], "--at": when["at"]}
    given = [option for option, value in kinds.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise click.UsageError(f"{found} given: exactly one of --cron, --every and --at is allowed.")
    if when["timezone"] is not None and when["cron"] is None:
        raise click.UsageError(f"--timezone goes with --cron; with {given[0]} it is not allowed.")
    return {"cron": when["cron"], "timezone": when["timezone"], "every": when["every"], "at": when["at"]}


def _rules_body(options: _RuleOptions) -> dict[str, object]:
    return {
        "topic": options["topic"],
        "max_attempts": options["max_attempts"],
        "timeout_s": options["timeout"],
        "starts_at": options["starts"],
        "ends_at": options["ends"],
        "jitter_s": options["jitter"],
        "catch_up": options["catch_up"],
        "overlap": options["overlap"],
        "group_key": options["group"],
        "unique": options["unique"],
        "unique_until": options["unique_until"],
        "on_conflict": options["on_conflict"],
    }


def local_iso(unix_s: float, zone: str) -> str:
    """A time in a zone, with its offset; UTC where this machine does not know the zone."""
    try:
        local: tzinfo = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        local = UTC
    return datetime.fromtimestamp(unix_s, local).isoformat(sep=" ")


def schedules_table(page: SchedulePageAnswer, now_s: float, width: int | None = None) -> Table:
    """The table of a page of schedules; ids are short where *width*, the columns of a terminal, is small."""
    ids = id_cells([schedule.id for schedule in page.schedules], width)
    rows = [[one, *_row(schedule, now_s)] for one, schedule in zip(ids, page.schedules, strict=True)]
    if all(schedule.key is None for schedule in page.schedules):
        return Table(_COLUMNS, rows)
    keys = [foreign(schedule.key or "") for schedule in page.schedules]
    return Table((*_COLUMNS, _KEY), [[*row, key] for row, key in zip(rows, keys, strict=True)])


def when_words(schedule: ScheduleInfo) -> str:
    """When *schedule* fires, in words."""
    if schedule.cron is not None:
        zone = f" {schedule.timezone}" if schedule.timezone else ""
        return printable(schedule.cron + zone)
    if schedule.every_s is not None:
        return f"every {schedule.every_s:g} s"  # exactly: 90 s are not 2 min
    return "once" if schedule.run_at is None else f"once at {iso(schedule.run_at)}"


def facts(schedule: ScheduleInfo, now_s: float) -> Iterator[tuple[str, Cell]]:
    """What there is to say of *schedule*, label by label."""
    yield "name", foreign(schedule.name)
    yield "topic", Cell("the handler's", "dim") if schedule.topic is None else foreign(schedule.topic)
    yield "when", Cell(when_words(schedule))
    yield "next", _next(schedule, now_s)
    if schedule.error is not None:
        yield "stuck", Cell(printable(schedule.error), "red")
    yield from _declaration(schedule)
    if schedule.last_run_at is not None:
        yield "last", moment(schedule.last_run_at, now_s)
    for label, time_s in (("starts", schedule.starts_at), ("ends", schedule.ends_at), ("created", schedule.created_at)):
        if time_s is not None:
            yield label, moment(time_s, now_s)
    if schedule.jitter_s:
        yield "jitter", Cell(f"up to {duration(schedule.jitter_s)}")
    for label, number in (("priority", schedule.priority), ("tries", schedule.max_attempts)):
        if number:
            yield label, Cell(str(number))
    yield "catch up", Cell(schedule.catch_up)
    yield "overlap", Cell(schedule.overlap + (f", {schedule.waiting} wait" if schedule.waiting else ""))
    yield from _in_its_way(schedule, now_s)
    if schedule.timeout_s is not None:
        yield "timeout", Cell(duration(schedule.timeout_s))
    if schedule.concealed:
        yield "args", Cell(CONCEALED, "dim")
    elif schedule.args is None:
        yield "args", Cell("too long to be shown", "dim")
    else:
        yield "args", foreign(shown_instead(schedule.args) or pretty(schedule.args))


def _in_its_way(schedule: ScheduleInfo, now_s: float) -> Iterator[tuple[str, Cell]]:
    if schedule.group_key is not None:
        yield "group", foreign(schedule.group_key)
    if schedule.unique_key is not None:
        yield "unique key", foreign(f"{schedule.unique_key} ({key_words(schedule)})")
    if schedule.skipped_at is not None:
        yield "skipped", moment(schedule.skipped_at, now_s)
    if schedule.skipped_for is not None:
        yield "for job", Cell(str(UUID(bytes=schedule.skipped_for)))


def _declaration(schedule: ScheduleInfo) -> Iterator[tuple[str, Cell]]:
    if schedule.undeclared_at is not None:
        yield "declared", Cell(f"not any more by {printable(schedule.declared_by or '')}", "yellow")
    elif schedule.declared_by is not None:
        yield "declared", foreign(f"by {schedule.declared_by}")
    if schedule.key is not None:
        yield "key", foreign(schedule.key)


def _next(schedule: ScheduleInfo, now_s: float) -> Cell:
    if schedule.paused:
        return Cell("paused", "yellow")
    return Cell("never again", "dim") if schedule.next_run_at is None else moment(schedule.next_run_at, now_s)


def _state(schedule: ScheduleInfo, now_s: float) -> Cell:
    """When it fires next, or what keeps it from that."""
    suffix = "" if schedule.undeclared_at is None else ", not declared any more"
    if schedule.error is not None:
        return Cell(f"stuck{suffix}", "red")
    if schedule.paused:
        return Cell(f"paused{suffix}", "yellow")
    coming = "never again" if schedule.next_run_at is None else ago(schedule.next_run_at, now_s)
    return Cell(f"{coming}{suffix}", "yellow") if suffix else Cell(coming)


def _row(schedule: ScheduleInfo, now_s: float) -> Line:
    return [
        foreign(schedule.name),
        foreign(schedule.topic or ""),
        Cell(when_words(schedule)),
        _state(schedule, now_s),
        Cell("" if schedule.last_run_at is None else ago(schedule.last_run_at, now_s), "dim"),
    ]


def _show(answer: dict[str, object], *, as_json: bool) -> None:
    document = part(answer, "schedule")
    if as_json:
        write_document(document)
        return
    schedule = read(ScheduleInfo, document)
    Screen().lines(
        [
            [Cell(str(UUID(bytes=schedule.id)), "bold")],
            *([Cell(f"{label:<{_LABEL_WIDTH}}", "dim"), value] for label, value in facts(schedule, time.time())),
        ]
    )
