"""``pulse ctl topics``: list, get, set, unset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypedDict, Unpack

import click
from msgspec import structs

from pulse.cli.control.topics_page import (
    SERVER,
    WORDS,
    groups_table,
    left_out,
    merged,
    others_words,
    policy_words,
    shown,
    topics_table,
)
from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.lookup import warn_of_limit, warn_of_topic
from pulse.cli.options import BACKOFF, DURATION, DURATION_OR_ZERO, TRIES, TextParam
from pulse.cli.output.render import Cell, Line, Screen, foreign, write_document
from pulse.cli.server import current_server
from pulse.common.text import count, iso, shell_word
from pulse.protocol.answers import Gate, Option, Retention, Topic, TopicPage, part, read
from pulse.protocol.stats import GroupsAnswer, Stats

_UNSET: Final = {  # what it means that nobody has set it
    "backoff": "quadratic",
    "timeout_s": "no limit",
    "stall_s": "no limit",
    "ageing_s": "strict order",
    "limit": "the one with its name, if there is one",
    "publish": "no",
}
_LABEL_WIDTH: Final = 16
_MOST: Final = 1000  # topics that `stats` tells by themselves


class _PolicyOptions(TypedDict):
    max_attempts: int | None
    max_crashes: int | None
    backoff: str | None
    timeout: float | None
    stall: float | None
    lease: float | None
    retention: float | None
    retention_dead: float | None
    ageing: float | None
    limit: str | None
    publish: bool | None


class _TopicOrServerParam(TextParam):
    """A topic's name; the empty one is the server."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself."""
        return value if value == "" else super().convert(value, param, ctx)


_TOPIC: Final = _TopicOrServerParam("topic", 200)


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def topics() -> None:
    """
    List topics with what is in them; show and change their policies.

    What a job or its handler says goes before the topic's policy, and that before the server's. Tries and timeouts are
    resolved when a job is submitted, all else when it is needed. Changes are in force on all hosts within a second.
    """


@topics.command(
    "list", epilog=examples("pulse ctl topics list", "pulse ctl topics list --json | jq '.topics[] | .oldest_s'")
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    metavar="N",
    help="Most to list of those with work, and of those with a policy, 1 to 1000.",
)
@click.option("--after", metavar="CURSOR", help="Go on behind a page: the cursor that it ended with.")
@click.option("--json", "as_json", is_flag=True, help='Print {"topics": [...], "others", "exact", "next"}.')
def list_topics(limit: int, after: str | None, *, as_json: bool) -> None:
    """
    List topics: how many jobs wait, for how long, run, are due later or have no handler; workers; what is set.

    Those with the most work, those that are paused and those with a policy. Pages behind the first one have policies
    alone. Workers are those of this server. A ~ before a number says that it is estimated.
    """
    body: dict[str, object] = {"limit": limit}
    if after is not None:
        body["after"] = after
    with current_server().client() as client:
        answer = client.request("topics.list", body, repeatable=True)
        told = client.request("stats", {"topics": _MOST, "history_s": 0}, repeatable=True)
        gate = read(Gate, client.request("dispatch.status", repeatable=True))
    page, found = read(TopicPage, answer), read(Stats, told)
    rows = merged(page.topics, found, gate, most=limit if after is None else None)
    others = left_out(rows, found)
    if as_json:
        write_document({"topics": rows, "others": structs.asdict(others), "exact": found.exact, "next": page.next})
        return
    screen = Screen()
    screen.table_or(topics_table(rows, is_exact=found.exact), "no topics")
    if after is None and others.topics:
        click.echo(others_words(others), err=True)
    if page.next is not None:
        click.echo(f"more: repeat with --after {shell_word(page.next)}", err=True)


@topics.command("get", epilog=examples("pulse ctl topics get images", 'pulse ctl topics get ""'))
@click.argument("topic", type=_TOPIC)
@click.option("--json", "as_json", is_flag=True, help="Print the policy as JSON.")
def get_topic(topic: str, *, as_json: bool) -> None:
    """Show every value that counts for TOPIC and where it comes from; "" is the server."""
    _show(current_server().ask("topics.get", {"topic": topic}, repeatable=True), as_json=as_json)
    _warn(topic, as_json=as_json)


@topics.command("groups", epilog=examples("pulse ctl topics groups images"))
@click.argument("topic", type=TextParam("topic", 200))
@click.option("--limit", type=click.IntRange(1, 100), default=20, metavar="N", help="Most to list, 1 to 100.")
@click.option("--json", "as_json", is_flag=True, help='Print {"groups": [...], "is_all"}.')
def list_groups(topic: str, limit: int, *, as_json: bool) -> None:
    """
    List the groups of TOPIC that have waiting jobs, those with the most due ones first.

    Jobs are counted up to 1000 in each group; of a topic with more than 2000 groups the first 2000 are looked at.
    "of" is how many jobs of the group may run at once.
    """
    answer = current_server().ask("topics.groups", {"topic": topic, "limit": limit}, repeatable=True)
    if as_json:
        write_document(answer)
        return
    found = read(GroupsAnswer, answer)
    screen = Screen()
    screen.table_or(groups_table(found.groups), "no group has waiting jobs")
    if not found.is_all:
        click.echo("There are more groups than were looked at.", err=True)
    _warn(topic, as_json=as_json)


@topics.command(
    "set",
    epilog=examples(
        "pulse ctl topics set images --max-attempts 3 --backoff exponential:1:600",
        "pulse ctl topics set mail --backoff list:1,10,60 --timeout 30",
        "pulse ctl topics set mail --limit api",
        "pulse ctl topics set orders --publish",
    ),
)
@click.argument("topic", type=_TOPIC)
@click.option("--max-attempts", type=TRIES, metavar="N", help="Tries before the dead letter.")
@click.option("--max-crashes", type=TRIES, metavar="N", help="Deaths of the worker before the dead letter.")
@click.option(
    "--backoff",
    type=BACKOFF,
    metavar="POLICY",
    help="quadratic[:UNIT], exponential[:FIRST[:LONGEST]], fixed:DURATION or list:DURATION,DURATION,...",
)
@click.option("--timeout", type=DURATION, metavar="DURATION", help="Longest run of one attempt.")
@click.option("--stall", type=DURATION, metavar="DURATION", help="Longest time without progress.")
@click.option("--lease", type=DURATION, metavar="DURATION", help="How long a worker may be silent.")
@click.option(
    "--retention", type=DURATION_OR_ZERO, metavar="DURATION", help="Keep completed and canceled jobs so long."
)
@click.option("--retention-dead", type=DURATION_OR_ZERO, metavar="DURATION", help="Keep dead letters so long.")
@click.option(
    "--ageing", type=DURATION_OR_ZERO, metavar="DURATION", help="Of waiting are worth one priority; 0: strict."
)
@click.option("--limit", type=TextParam("limit", 200), metavar="NAME", help="The limit that its jobs go by.")
@click.option("--publish/--no-publish", default=None, help="Whether the ends of its jobs go to the outbox.")
@click.option("--json", "as_json", is_flag=True, help="Print the policy as JSON.")
def set_topic(topic: str, *, as_json: bool, **options: Unpack[_PolicyOptions]) -> None:
    """Set options of TOPIC; those that are not given stay as they are."""
    given: dict[str, object] = {**options}
    named = {option: given[word.replace("-", "_")] for option, word in WORDS.items()}
    policy = {option: value for option, value in named.items() if value is not None}
    if not policy:
        words = ", ".join(f"--{word}" for word in WORDS.values())
        raise click.UsageError(f"nothing to set: one or more of {words} are needed.")
    _show(current_server().ask("topics.set", {"topic": topic, "policy": policy}, repeatable=True), as_json=as_json)
    _warn(topic, as_json=as_json)
    if options["limit"] is not None and not as_json:
        warn_of_limit(options["limit"])


@topics.command(
    "unset", epilog=examples("pulse ctl topics unset images backoff timeout", "pulse ctl topics unset images")
)
@click.argument("topic", type=_TOPIC)
@click.argument("options", type=click.Choice(list(WORDS.values())), nargs=-1, metavar="[OPTION]...")
@click.option("--json", "as_json", is_flag=True, help="Print the policy as JSON.")
def unset_topic(topic: str, options: tuple[str, ...], *, as_json: bool) -> None:
    """Unset options of TOPIC, all of them when none is named: then the server's count."""
    named = [option for option, word in WORDS.items() if word in options]
    _show(current_server().ask("topics.unset", {"topic": topic, "options": named}, repeatable=True), as_json=as_json)


def _warn(topic: str, *, as_json: bool) -> None:
    if topic and not as_json:
        warn_of_topic(topic, if_similar=True)


def topic_lines(topic: Topic) -> Iterator[Line]:
    """A policy in words, a line for each option, and one for each handler that says something itself."""
    yield [foreign(topic.topic or SERVER)]
    for option, word in WORDS.items():
        yield [Cell(f"{word:<{_LABEL_WIDTH}}", "dim"), *_value(option, topic.policy.get(option, Option()))]
    for handler in topic.handlers:
        said = policy_words(handler)
        if said:
            yield [Cell(f"{'handler':<{_LABEL_WIDTH}}", "dim"), foreign(f"{handler.get('name')}: {said}")]
    if topic.retention is not None and not topic.topic:
        yield [Cell(f"{'old jobs':<{_LABEL_WIDTH}}", "dim"), Cell(_progress(topic.retention))]


def _progress(retention: Retention) -> str:
    """How far the deleting of old jobs has got, of all topics."""
    if retention.ended_at is None:
        last = "no whole round yet"
    else:
        last = f"{count(retention.last_gone, 'job')} deleted in the round that ended {iso(int(retention.ended_at))}"
    return f"{last}; {retention.gone:,} of {retention.walked:,} in the newest; {retention.total_gone:,} in all"


def _value(option: str, value: Option) -> Line:
    if value.value is None:
        return [Cell(_UNSET.get(option, "not set"), "dim")]
    return [foreign(shown(value.value)), Cell(f"  ({value.source})", "dim")]


def _show(answer: dict[str, object], *, as_json: bool) -> None:
    document = part(answer, "topic")
    if as_json:
        write_document(document)
    else:
        Screen().lines(topic_lines(read(Topic, document)))
