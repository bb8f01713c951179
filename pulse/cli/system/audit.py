"""``pulse ctl audit``: what operators did, and who."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import click
import msgspec

from pulse.cli.lazy import examples
from pulse.cli.options import DURATION, TOPIC, TextParam, with_full
from pulse.cli.output.render import Cell, Column, Screen, Table, foreign, id_cells, write_document
from pulse.cli.server import current_server
from pulse.common.text import ago, count, cut, iso, one_line
from pulse.protocol.answers import Action, ActionPage, read

_COLUMNS: Final = (
    Column("when"),
    Column("ago", right=True, leave_out=3),
    Column("who", least=6),
    Column("action"),
    Column("what", least=10, leave_out=1),
)
_WHAT_CHARACTERS: Final = 200


@click.command(
    epilog=examples("pulse ctl audit --since 1d", "pulse ctl audit --action jobs. --json | jq '.audit[].user_name'")
)
@click.option(
    "--action", type=TextParam("action", 64), metavar="ACTION", help="Only this, as jobs.cancel; jobs. is all of jobs."
)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only about this topic.")
@click.option("--since", type=DURATION, metavar="AGE", help="Only of the last 90, 5m, 2h30m.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="Most to list, 1 to 1000.")
@click.option("--after", metavar="CURSOR", help="Go on behind a page: the cursor that it ended with.")
@with_full
@click.option("--json", "as_json", is_flag=True, help='Print {"audit": [...], "next": cursor or null}.')
def audit(
    action: str | None,
    topic: str | None,
    since: float | None,
    limit: int,
    after: str | None,
    *,
    full: bool,
    as_json: bool,
) -> None:
    """
    Show what operators did, newest first: who by the kernel's word, when, what, to how many.

    "ann by www": a process of www asked, and says that it did so for ann, as the dashboard does. Kept for 90 days.
    """
    given = {"action": action, "topic": topic, "since_s": since, "limit": limit, "after": after}
    body = {key: value for key, value in given.items() if value is not None}
    answer = current_server().ask("audit.list", body, repeatable=True)
    if as_json:
        rows = cast("list[dict[str, Any]]", answer["audit"])
        write_document({**answer, "audit": [{**row, "detail": msgspec.Raw(row["detail"].encode())} for row in rows]})
        return
    page = read(ActionPage, answer)
    screen = Screen()
    if page.audit:
        screen.table(audit_table(page, time.time(), None if full else screen.width))
    else:
        screen.lines([[Cell("nothing", "dim")]])
    if page.next is not None:
        click.echo(f"more: repeat with --after {page.next}", err=True)


def audit_table(page: ActionPage, now_s: float, width: int | None = None) -> Table:
    """The table of a page; ids are short where *width*, the columns of a terminal, is small."""
    whole = [one for action in page.audit for one in (action.job_id, action.schedule_id) if one is not None]
    ids = {one: cell.text for one, cell in zip(whole, id_cells(whole, width), strict=True)}
    rows = [
        [
            Cell(iso(int(one.at))),
            Cell(ago(one.at, now_s), "dim"),
            foreign(_who(one)),
            foreign(one.action),
            Cell(cut(one_line(_what(one, ids)), _WHAT_CHARACTERS)),
        ]
        for one in page.audit
    ]
    return Table(_COLUMNS, rows)


def _who(one: Action) -> str:
    """The process's user, from the kernel; before it the person on whose behalf it asked, by its own word."""
    by = _user(one)
    return by if one.behalf is None else f"{one.behalf} by {by}"


def _user(one: Action) -> str:
    if one.user_name is not None:
        return one.user_name if one.uid is not None else f"{one.user_name} (SQL)"
    return "?" if one.uid is None else f"uid {one.uid}"


def _what(one: Action, ids: Mapping[bytes, str]) -> str:
    words: list[str] = []
    if one.jobs is not None and one.jobs > 1:
        words.append(count(one.jobs, "job"))
    words += [f"{label} {ids[value]}" for label, value in (("job", one.job_id), ("schedule", one.schedule_id)) if value]
    if one.topic is not None:
        words.append(f"topic {one.topic}" if one.topic else "everything")
    detail: object = json.loads(one.detail)
    if isinstance(detail, dict):
        told = cast("dict[str, Any]", detail)
        words += [f"{key}={value}" for key, value in told.items() if key != "ids" and value is not None]
    return ", ".join(words)
