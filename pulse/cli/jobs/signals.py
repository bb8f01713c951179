"""``pulse ctl jobs signal``: tells a job what its handler waits for."""

from __future__ import annotations

import sys
from typing import Final
from uuid import UUID, uuid4

import click

from pulse.cli.lazy import examples
from pulse.cli.lookup import IdWord, job_of
from pulse.cli.options import JOB, PAYLOAD, SIGNAL, SIGNAL_KEY
from pulse.cli.output.render import write_document
from pulse.cli.server import current_server
from pulse.common.text import shell_word
from pulse.errors import BadRequestError
from pulse.ops.json_input import decoded_payload
from pulse.protocol.answers import read
from pulse.protocol.workflows import SignalAnswer

_MAX_READ_BYTES: Final = 1024 * 1024  # of standard input; the server allows less


@click.command(
    epilog=examples(
        'pulse ctl jobs signal 0190163d-8694-739b-aea5-966c26f8ad91 approved \'{"by": "ann"}\'',
        "pulse ctl jobs signal 0190163d-8694-739b-aea5-966c26f8ad91 paid --key invoice-7",
        "curl -s https://shop.example/orders/7 | pulse ctl jobs signal 0190163d-8694-739b-aea5-966c26f8ad91 paid -",
    )
)
@click.argument("job_id", metavar="ID", type=JOB)
@click.argument("name", type=SIGNAL)
@click.argument("payload", type=PAYLOAD, default="null")
@click.option("--key", type=SIGNAL_KEY, metavar="KEY", help="The same NAME and KEY count once, however often sent.")
@click.option("--json", "as_json", is_flag=True, help='Print {"new": true or false}.')
def signal(job_id: IdWord, name: str, payload: str, *, key: str | None, as_json: bool) -> None:
    """
    Send the signal NAME to a job, with PAYLOAD, any JSON value.

    Its handler gets it from ctx.wait_for, and if it waits for that, goes on at once; else the signal is kept until it
    asks. With - as PAYLOAD standard input is the payload. A job that has completed or was canceled is refused.
    """
    text = _piped() if payload == "-" else payload
    job = job_of(job_id)
    body = {"id": job, "name": name, "payload": text, "key": str(uuid4()) if key is None else key}
    answer = current_server().ask("jobs.signal", body, repeatable=True)
    if as_json:
        write_document(answer)
        return
    is_new = read(SignalAnswer, answer).new
    to = f"{shell_word(name)} to {UUID(bytes=job)}"
    click.echo(f"sent {to}" if is_new else f"nothing new: with that key {to} was sent before")


def _piped() -> str:
    """The payload on standard input."""
    given = sys.stdin.buffer.read(_MAX_READ_BYTES + 1)
    if len(given) > _MAX_READ_BYTES:
        raise BadRequestError(f"the payload has more than {_MAX_READ_BYTES} bytes")
    return decoded_payload(given)
