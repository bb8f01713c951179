"""``pulse ctl submit``: one job from the command line, or many from standard input as JSON Lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, TypedDict, Unpack

import click

from pulse.cli.lazy import examples
from pulse.cli.lookup import warn_of_topic
from pulse.cli.options import ARGS, DURATION, DURATION_OR_ZERO, GROUP, ID, KEY, NAME, PRIORITY, TIME, TOPIC, TRIES
from pulse.cli.output.progress import ProgressLine
from pulse.cli.output.render import write_document
from pulse.cli.server import current_server
from pulse.common.text import count, duration
from pulse.errors import NobodyAnswersError, PulseError

if TYPE_CHECKING:
    from uuid import UUID

    from pulse.client.client import Client

_READ_BYTES: Final = 1024 * 1024
_PROGRESS_S: Final = 0.1  # between two updates of the line on the terminal


class KeyOptions(TypedDict):
    """The unique key of a job."""

    unique: str | None
    unique_until: str | None
    on_conflict: str | None


class SubmitOptions(KeyOptions):
    """What every job of a submit gets; None: the handler, the topic or the server decides."""

    topic: str | None
    priority: int
    delay: float | None
    at: float | None
    max_attempts: int | None
    timeout: float | None
    expires_in: float | None
    expires_at: float | None
    group: str | None
    after: tuple[bytes, ...]
    on_failure: str | None


@click.command(
    epilog=examples(
        'pulse ctl submit resize \'{"path": "a.png", "width": 64}\' --priority 10',
        "pulse ctl submit report --delay 2h30m",
        "pulse ctl submit report --at 2030-01-31T06:00:00+01:00",
        "pulse ctl submit index '{\"doc\": 42}' --unique doc:42 --unique-until start",
        "pulse ctl submit report --after 0190163d-8694-739b-aea5-966c26f8ad91 --on-failure run",
        "jq -c '{path: .file}' files.json | pulse ctl submit resize - --topic images",
    )
)
@click.argument("name", type=NAME)
@click.argument("args", type=ARGS, default="{}")
@click.option("--topic", type=TOPIC, metavar="TOPIC", show_default="the handler's", help="Queue to wait in.")
@click.option("--priority", type=PRIORITY, default=0, metavar="P", help="Higher first.")
@click.option("--delay", type=DURATION_OR_ZERO, metavar="DURATION", help="Wait so long before the first try.")
@click.option("--at", type=TIME, metavar="ISO-TIME", help="Time of the first try instead; without a zone it is UTC.")
@click.option(
    "--max-attempts", type=TRIES, metavar="N", show_default="the handler's", help="Tries before the dead letter."
)
@click.option(
    "--timeout", type=DURATION, metavar="DURATION", show_default="the handler's", help="Longest run of one attempt."
)
@click.option("--expires-in", type=DURATION, metavar="DURATION", help="Not worth starting any more after so long.")
@click.option("--expires-at", type=TIME, metavar="ISO-TIME", help="That time instead; without a zone it is UTC.")
@click.option("--group", type=GROUP, metavar="GROUP", help="Group that limits, fair turns and sequences go by.")
@click.option("--unique", type=KEY, metavar="KEY", help="Only if no other job has this key.")
@click.option(
    "--unique-until", type=click.Choice(["start", "end"]), show_default="end", help="How long it keeps the key."
)
@click.option(
    "--on-conflict",
    type=click.Choice(["skip", "replace", "error"]),
    show_default="skip",
    help="If another job has it: print its id; or give it these args and times, if it waits; or fail.",
)
@click.option(
    "--after", type=ID, multiple=True, metavar="UUID", help="Wait until this job has ended; may be given again."
)
@click.option(
    "--on-failure",
    type=click.Choice(["cancel", "run"]),
    show_default="cancel",
    help="If such a job fails or is canceled: cancel this one, too, or run it all the same.",
)
@click.option("--id", "job_id", type=ID, metavar="UUID", help="Submit under this id; repeating it does no harm.")
@click.option("--json", "as_json", is_flag=True, help='Print {"ids": [...]} instead of one id per line.')
def submit(name: str, args: str, job_id: bytes | None, *, as_json: bool, **options: Unpack[SubmitOptions]) -> None:
    """
    Submit a job to the handler NAME with ARGS, a JSON object of keyword arguments.

    Prints the job's id once it is committed; with --unique the id of the job that has the key. With - as ARGS every
    line of standard input is the args of one job (JSON Lines). A line that is not ends the submit: it is named, all
    lines before it have been submitted, and none behind it.
    """
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("--delay and --at cannot be given together; one of them is allowed.")
    if options["expires_in"] is not None and options["expires_at"] is not None:
        raise click.UsageError("--expires-in and --expires-at cannot be given together; one of them is allowed.")
    if options["unique"] is None and (options["unique_until"] is not None or options["on_conflict"] is not None):
        raise click.UsageError("--unique-until and --on-conflict are allowed with --unique only.")
    if options["on_failure"] is not None and not options["after"]:
        raise click.UsageError("--on-failure is allowed with --after only.")
    if args == "-" and job_id is not None:
        raise click.UsageError("--id names one job; with - as ARGS each line becomes a job with an id of its own.")
    if args == "-" and options["unique"] is not None:
        raise click.UsageError("--unique is the key of one job; with - as ARGS only the first line would get it.")
    server = current_server()
    if options["topic"] is not None:
        server.route(options["topic"])
        server.check_topic(options["topic"])
        if not as_json:
            warn_of_topic(options["topic"], if_similar=True)
    elif server.goes_by_topic:
        raise click.UsageError("the config file has queues, and a job goes to the queue of its topic: add --topic.")
    if args == "-":
        _submit_lines(name, options, as_json=as_json)
        return
    with server.client() as client:
        body = job_body(name, args, options, job_id)
        ids = _send(client, [body], set())
        if ids[0].bytes != body["id"]:
            click.echo(f"pulse: nothing new: job {ids[0]} has this unique key", err=True)
        _show(ids, as_json=as_json)


def job_body(name: str, args: str, options: SubmitOptions, job_id: bytes | None = None) -> dict[str, object]:
    """One job as the wire wants it; it has an id, so that a submit whose answer was lost can be repeated."""
    from pulse.common.ids import uuid7

    body: dict[str, object] = {
        "name": name,
        "args": args,
        "topic": options["topic"],
        "priority": options["priority"],
        "delay_s": options["delay"],
        "run_at": options["at"],
        "max_attempts": options["max_attempts"],
        "timeout_s": options["timeout"],
        "expires_in_s": options["expires_in"],
        "expires_at": options["expires_at"],
        "group_key": options["group"],
        "unique": options["unique"],
        "unique_until": options["unique_until"],
        "on_conflict": options["on_conflict"],
        "after": list(options["after"]) or None,
        "on_failure": options["on_failure"],
        "id": uuid7().bytes if job_id is None else job_id,
    }
    return {key: value for key, value in body.items() if value is not None}


class _SubmitProgress:
    """
    The count of submitted jobs; on a terminal also a line that moves.

    Args:
        is_shown: Whether nothing else is written to the terminal.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self.jobs = 0
        self._line = ProgressLine(_PROGRESS_S, is_shown=is_shown)
        self._started_s = time.monotonic()

    def moved(self, jobs: int) -> None:
        """*jobs* more were submitted."""
        self.jobs += jobs
        self._line.show(self._text())

    def end(self) -> None:
        """There will be no more."""
        self._line.end(self._text())

    def _text(self) -> str:
        spent_s = max(time.monotonic() - self._started_s, 1e-3)
        return f"{count(self.jobs, 'job')} submitted in {duration(spent_s)} ({self.jobs / spent_s:,.0f}/s)"


def _submit_lines(name: str, options: SubmitOptions, *, as_json: bool) -> None:
    from pulse.cli.jobs.jsonlines import batches

    ids: list[UUID] = []
    warned = set[str]()
    failure: PulseError | None = None
    where = ""
    progress = _SubmitProgress(is_shown=as_json or not sys.stdout.isatty())
    with current_server().client() as client:
        try:
            for batch in batches(_chunks(sys.stdin.buffer)):
                where = f"lines {batch.first} to {batch.last}: "
                sent = _send(client, [job_body(name, args, options) for args in batch.args], warned)
                where = ""
                progress.moved(len(sent))
                if as_json:
                    ids += sent
                else:
                    _show(sent, as_json=False)
        except PulseError as error:
            kind = NobodyAnswersError if isinstance(error, NobodyAnswersError) else PulseError
            failure = kind(f"{where}{error.message}; submitted before: {count(progress.jobs, 'job')}")
        finally:  # also when interrupted: print what was sent
            progress.end()
            if as_json:
                _show(ids, as_json=True)
    if failure is not None:
        raise failure


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """What there is to read, as soon as there is something."""
    read = getattr(stream, "read1", stream.read)
    while chunk := read(_READ_BYTES):
        yield chunk


def _send(client: Client, jobs: Sequence[dict[str, object]], warned: set[str]) -> list[UUID]:
    """Submit *jobs*; warns of each name that no worker has a handler for, unless it was *warned* of."""
    from uuid import UUID

    from pulse.client.records import unhandled_text
    from pulse.protocol.answers import Submitted, read

    answer = read(Submitted, client.request("submit", {"jobs": jobs}, repeatable=True))
    for unhandled in answer.unhandled:
        if unhandled.name not in warned:
            warned.add(unhandled.name)
            click.echo(f"pulse: {unhandled_text(unhandled)}", err=True)
    return [UUID(bytes=one) for one in answer.ids]


def _show(ids: Sequence[UUID], *, as_json: bool) -> None:
    if as_json:
        write_document({"ids": [one.bytes for one in ids]})
    else:
        sys.stdout.write("".join(f"{one}\n" for one in ids))
        sys.stdout.flush()
