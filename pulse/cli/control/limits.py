"""``pulse ctl limits``: list, set, unset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict, Unpack

import click

from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.options import TextParam
from pulse.cli.output.render import STATUS_STYLES, Cell, Column, Line, Screen, Table, foreign, write_document
from pulse.cli.server import current_server
from pulse.common.text import iso, one_line, shell_word
from pulse.protocol.answers import part, read
from pulse.protocol.limits import LimitInfo, LimitPageAnswer

_LIMIT: Final = TextParam("limit", 200)
_GROUP: Final = TextParam("group", 200)
_WORDS: Final = {  # options by the names that the wire gives them
    "concurrency": "concurrency",
    "rate": "rate",
    "burst": "burst",
    "group_concurrency": "group-concurrency",
    "group_rate": "group-rate",
    "group_burst": "group-burst",
    "sequence": "sequence",
}
_COUNTED: Final = 1000  # slots that the server counts
_MOST_TOPICS: Final = 5  # in a cell of the table
_COLUMNS: Final = (
    Column("limit", least=8),
    Column("group", least=6),
    Column("running", right=True),
    Column("rate", leave_out=2),
    Column("tokens", right=True, leave_out=4),
    Column("each group", leave_out=1),
    Column("topics", least=8, leave_out=3),
    Column("declared by", leave_out=5),
)
_MANY: Final = click.IntRange(1, 1_000_000)
_SLOTS: Final = click.IntRange(0, 1_000_000)
_RATE: Final = click.FloatRange(1e-6, 1e6)


class _LimitPolicy(TypedDict):
    concurrency: int | None
    rate: float | None
    burst: int | None
    group_concurrency: int | None
    group_rate: float | None
    group_burst: int | None
    sequence: str | None


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def limits() -> None:
    """
    List and change limits: how many jobs run at once, and how many start per second, in all and of each group.

    The jobs of a topic go by the limit that has its name, or by the one that `pulse ctl topics set TOPIC --limit NAME`
    names. A limit holds across all servers; a change holds from the next start on, and stops nothing that runs.
    """


@limits.command("list", epilog=examples("pulse ctl limits list", "pulse ctl limits list api --json"))
@click.argument("name", type=_LIMIT, required=False)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, metavar="N", help="Most to list, groups included, 1 to 1000."
)
@click.option("--after", metavar="CURSOR", help="Go on behind a page: the cursor that it ended with.")
@click.option("--json", "as_json", is_flag=True, help='Print {"limits": [...], "next": cursor or null}.')
def list_limits(name: str | None, limit: int, after: str | None, *, as_json: bool) -> None:
    """
    List limits, or only NAME, each with the groups of which something differs.

    Running: slots that are taken, of how many. Tokens: how many jobs may start now by the rate.
    """
    given = {"name": name, "limit": limit, "after": after}
    body = {key: value for key, value in given.items() if value is not None}
    answer = current_server().ask("limits.list", body, repeatable=True)
    if as_json:
        write_document(answer)
        return
    page = read(LimitPageAnswer, answer)
    screen = Screen()
    screen.table_or(limits_table(page.limits), "no limits")
    if page.next is not None:
        click.echo(f"more: repeat with --after {shell_word(page.next)}", err=True)


@limits.command(
    "set",
    epilog=examples(
        "pulse ctl limits set api --concurrency 50 --rate 100 --group-concurrency 2",
        "pulse ctl limits set api --group tenant-7 --concurrency 0",
    ),
)
@click.argument("name", type=_LIMIT)
@click.option("--group", type=_GROUP, metavar="G", help="Only what differs for this group.")
@click.option("--concurrency", type=_SLOTS, metavar="N", help="Most jobs that run at once; 0: none starts.")
@click.option("--rate", type=_RATE, metavar="R", help="Starts per second.")
@click.option("--burst", type=_MANY, metavar="B", help="How many may start together, with --rate.")
@click.option("--group-concurrency", type=_SLOTS, metavar="N", help="Most jobs of each group that run at once.")
@click.option("--group-rate", type=_RATE, metavar="R", help="Starts per second of each group.")
@click.option("--group-burst", type=_MANY, metavar="B", help="How many of each group may start together.")
@click.option(
    "--sequence",
    type=click.Choice(["continue", "halt"]),
    help="Jobs of a group run one by one; at a dead letter the others go on, or wait.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the limit as JSON.")
def set_limit(name: str, group: str | None, *, as_json: bool, **options: Unpack[_LimitPolicy]) -> None:
    """Set options of the limit NAME; those that are not given stay as they are."""
    given: dict[str, object] = {**options}
    policy = {option: given[option] for option in _WORDS if given[option] is not None}
    if not policy:
        words = ", ".join(f"--{word}" for word in _WORDS.values())
        raise click.UsageError(f"nothing to set: one or more of {words} are needed.")
    _set(name, group, policy, as_json=as_json)


@limits.command(
    "unset", epilog=examples("pulse ctl limits unset api rate burst", "pulse ctl limits unset api --group tenant-7")
)
@click.argument("name", type=_LIMIT)
@click.argument("options", type=click.Choice(list(_WORDS.values())), nargs=-1, metavar="[OPTION]...")
@click.option("--group", type=_GROUP, metavar="G", help="Only what differs for this group.")
@click.option("--json", "as_json", is_flag=True, help="Print the limit as JSON; if all is unset, as it was.")
def unset_limit(name: str, options: tuple[str, ...], group: str | None, *, as_json: bool) -> None:
    """Remove the limit NAME with all that differs for groups, or that of one group; or unset only some options."""
    if options:
        named = [option for option, word in _WORDS.items() if word in options]
        _set(name, group, dict.fromkeys(named), as_json=as_json)
        return
    body: dict[str, object] = {"name": name} if group is None else {"name": name, "group_key": group}
    document = part(current_server().ask("limits.unset", body), "limit")
    if as_json:
        write_document(document)
        return
    was = read(LimitInfo, document)
    of_group = "" if group is None else f" of the group {shell_word(group)}"
    click.echo(f"unset{of_group}: {shell_word(name)}: {policy_words(was) or 'nothing was set'}")
    if was.declared_by is not None and was.undeclared_at is None:
        by = one_line(was.declared_by)
        click.echo(f"pulse: {by} declares it: the next of its workers that connects sets it again", err=True)


def _set(name: str, group: str | None, policy: Mapping[str, object], *, as_json: bool) -> None:
    body: dict[str, object] = {"name": name, "policy": policy}
    if group is not None:
        body["group_key"] = group
    document = part(current_server().ask("limits.set", body, repeatable=True), "limit")
    if as_json:
        write_document(document)
    else:
        Screen().table(limits_table([read(LimitInfo, document)]))


def limits_table(rows: list[LimitInfo]) -> Table:
    """The table of limits and groups."""
    return Table(_COLUMNS, [_row(row) for row in rows])


def policy_words(limit: LimitInfo) -> str:
    """What is set, in words."""
    found = ((word, getattr(limit, option)) for option, word in _WORDS.items())
    return ", ".join(f"{word} {_number(value)}" for word, value in found if value is not None)


def _row(row: LimitInfo) -> Line:
    running = "" if row.running is None else f"{row.running:,}{'+' if row.running == _COUNTED else ''}"
    taken = running if row.concurrency is None else f"{running} of {row.concurrency:,}"
    by = "" if row.declared_by is None else one_line(row.declared_by)
    gone = "" if row.undeclared_at is None else f", until {iso(int(row.undeclared_at))}"
    return [
        foreign(row.name),
        foreign(row.group_key or ""),
        Cell(taken, "yellow" if row.is_full else STATUS_STYLES["RUNNING"] if row.running else ""),
        Cell(_rate(row.rate, row.burst)),
        Cell("" if row.tokens is None else f"{int(row.tokens):,}"),
        Cell(_each(row)),
        foreign(_topics(row.topics or [])),
        foreign(f"{by}{gone}"),
    ]


def _rate(rate: float | None, burst: int | None) -> str:
    return "" if rate is None else f"{_number(rate)}/s" + ("" if burst is None else f", burst {burst:,}")


def _each(row: LimitInfo) -> str:
    at_once = None if row.group_concurrency is None else f"{row.group_concurrency:,} at once"
    sequence = None if row.sequence is None else f"sequence, {row.sequence}"
    return ", ".join(word for word in (at_once, _rate(row.group_rate, row.group_burst), sequence) if word)


def _topics(topics: list[str]) -> str:
    more = len(topics) - _MOST_TOPICS
    return ", ".join(map(one_line, topics[:_MOST_TOPICS])) + (f" and {more} more" if more > 0 else "")


def _number(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)
