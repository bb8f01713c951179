"""The command line of bridges: ``pulse bridge nats`` and ``pulse bridge nats-outbox``."""

from __future__ import annotations

import logging
import os
import re
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

import click

from pulse.bridge.jobs import BridgeOptions
from pulse.cli.lazy import CONTEXT, CommandGroup, examples
from pulse.cli.options import NAME, TOPIC
from pulse.client.async_client import connect as connect_client
from pulse.common.extras import require
from pulse.queues.server_option import chosen_server, refuse_two

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import anyio

    from pulse.bridge.nats import NatsLogin, NatsOptions
    from pulse.bridge.outbox import SubjectTemplate
    from pulse.client.async_client import AsyncClient

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_ANSWER_S: Final = 10.0  # for one answer of the server; then it is asked again
_WORD: Final = re.compile(r"[^\s.*>/\\]{1,255}")
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class _NatsFiles(TypedDict):
    """The files to log in to NATS with."""

    creds: Path | None
    ca: Path | None
    cert: Path | None
    key: Path | None


class _NatsSource(_NatsFiles):
    """The options of ``pulse bridge nats`` that concern NATS."""

    stream: str
    consumer: str
    subject: str | None


class _User(TypedDict):
    user: str | None
    password: str | None


def _check_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Of a stream or a consumer."""
    if _WORD.fullmatch(value) is None:
        raise click.BadParameter(f"{value!r:.60}: 1 to 255 characters are allowed, but no spaces nor any of . * > / \\")
    return value


def _check_url(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """What is on the command line is in the list of processes, too."""
    is_given = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
    if is_given and "@" in value:
        raise click.BadParameter(
            "user and password are not allowed here, where all users of this machine can read them;"
            " NATS_USER and NATS_PASSWORD, NATS_URL or a file for --creds are"
        )
    return value


_OPTIONS: Final = (
    click.option(
        "--url",
        envvar="NATS_URL",
        default="nats://127.0.0.1:4222",
        metavar="URL",
        callback=_check_url,
        help="NATS servers, separated by commas: nats://HOST:PORT, or tls://HOST:PORT.  [env: NATS_URL]",
    ),
    click.option("--creds", envvar="NATS_CREDS", type=_FILE, metavar="FILE", help="Logs in.  [env: NATS_CREDS]"),
    click.option("--tls-ca", "ca", envvar="NATS_CA", type=_FILE, metavar="FILE", help="Trusted CAs.  [env: NATS_CA]"),
    click.option(
        "--tls-cert", "cert", envvar="NATS_CERT", type=_FILE, metavar="FILE", help="Own certificate.  [env: NATS_CERT]"
    ),
    click.option("--tls-key", "key", envvar="NATS_KEY", type=_FILE, metavar="FILE", help="Its key.  [env: NATS_KEY]"),
    click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="The server's socket."),
    click.option(
        "--connect",
        metavar="ADDRESS",
        help="A server elsewhere, tls://HOST:PORT; PULSE_USER and PULSE_PASSWORD log in.",
    ),
)


def _reach(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say where NATS and the server are."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(cls=CommandGroup, context_settings=dict(CONTEXT))
def bridge() -> None:
    """Make jobs of the messages of a broker, and messages of the ends of jobs."""


@bridge.command(
    "nats",
    epilog=examples(
        "pulse bridge nats --stream ORDERS --consumer pulse --handler ship",
        "pulse bridge nats --stream ORDERS --consumer eu --subject 'orders.eu.>' --handler ship --topic eu",
        "pulse bridge nats --stream WORK --consumer pulse --handler work --refused-handler look-at",
    ),
)
@click.option("--stream", required=True, metavar="S", callback=_check_name, help="The stream.")
@click.option(
    "--consumer",
    required=True,
    metavar="C",
    callback=_check_name,
    help="Its durable consumer; made if it is not there.",
)
@click.option("--handler", required=True, type=NAME, metavar="H", help="Name of the handler that takes the messages.")
@click.option("--topic", type=TOPIC, metavar="T", show_default="the handler's", help="Queue of the jobs.")
@click.option("--subject", metavar="SUBJECT", help="Only such messages, if the consumer is made: orders.eu.>")
@click.option(
    "--as-message", is_flag=True, help="Args are subject, headers, data and base64, not the JSON object in the message."
)
@click.option(
    "--refused-handler",
    type=NAME,
    metavar="H",
    help="Takes messages that cannot be jobs of --handler; by default they are logged and terminated.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    default=10_000,
    metavar="N",
    help="Pull no more while so many jobs of the topic wait.",
)
@_reach
def nats(
    *,
    handler: str,
    topic: str | None,
    refused_handler: str | None,
    as_message: bool,
    max_waiting: int,
    socket: Path | None,
    connect: str | None,
    url: str,
    **source: Unpack[_NatsSource],
) -> None:
    """
    Make a job of each message of a NATS JetStream stream.

    A message is acknowledged when its job is committed. Its id is made of the handler and of the message: Nats-Msg-Id,
    else stream, sequence and time. So a message that is delivered again is no second job. While the server or NATS is
    away the bridge waits. NATS_USER and NATS_PASSWORD log in. SIGTERM ends it.
    """
    require("pulse bridge nats", ["nats"], "nats")
    import anyio

    from pulse.bridge.nats import NatsOptions

    server = _server(socket, connect)
    options = NatsOptions(_urls(url), **_user(), **source)
    jobs = BridgeOptions(handler, topic, refused_handler, as_message=as_message, max_waiting=max_waiting)
    anyio.run(_run, options, jobs, server)


@bridge.command(
    "nats-outbox",
    epilog=examples(
        "pulse ctl topics set orders --publish && pulse bridge nats-outbox",
        "pulse bridge nats-outbox --subject 'shop.{topic}.{name}.{status}'",
    ),
)
@click.option(
    "--subject",
    default="pulse.{topic}.{status}",
    show_default=True,
    metavar="SUBJECT",
    help="Of the messages; {topic}, {name} and {status} are filled in.",
)
@_reach
def nats_outbox(
    *, subject: str, socket: Path | None, connect: str | None, url: str, **files: Unpack[_NatsFiles]
) -> None:
    """
    Publish the ends of jobs to NATS JetStream, of topics with the option --publish.

    Each end becomes a message at least once, whatever is killed or away meanwhile; its Nats-Msg-Id is the same each
    time. A stream has to take the subjects. Several of these processes share the work. NATS_USER and NATS_PASSWORD log
    in. The server has to let it in as operator. SIGTERM ends it.
    """
    require("pulse bridge nats-outbox", ["nats"], "nats")
    import anyio

    from pulse.bridge.nats import NatsLogin
    from pulse.bridge.outbox import SubjectTemplate

    template = SubjectTemplate(subject)
    server = _server(socket, connect)
    anyio.run(_publish, NatsLogin(_urls(url), **_user(), **files), template, server)


def _urls(url: str) -> list[str]:
    return [one.strip() for one in url.split(",") if one.strip()]


def _user() -> _User:
    return {"user": os.environ.get("NATS_USER"), "password": os.environ.get("NATS_PASSWORD")}


def _server(socket: Path | None, connect: str | None) -> Path | str | None:
    """Where the server is, as given or as the environment says; None: it is looked for. The log is set up, too."""
    from pulse import config
    from pulse.logs import configure_logging

    refuse_two({"--socket": socket, "--connect": connect})
    settings, routes = config.load_with_routes(os.environ)
    configure_logging(settings.log_level, settings.log_format)
    logging.captureWarnings(capture=True)  # that no worker has the handler
    needed = "--socket or --connect is needed, with the server of one of them"
    return chosen_server(settings, routes, connect if connect is not None else socket, needed=needed)


async def _run(options: NatsOptions, jobs: BridgeOptions, server: Path | str | None) -> None:
    import structlog

    from pulse.bridge.loop import Bridge
    from pulse.bridge.nats import connected

    log = structlog.get_logger()
    async with connected(options) as broker, _until_stopped(server) as (client, stopping):
        made = Bridge(broker, client, jobs, stopping=stopping)
        stream, consumer = options.stream, options.consumer
        log.info("bridge_ready", broker=options.shown, stream=stream, consumer=consumer, handler=jobs.handler)
        await made.run()


async def _publish(login: NatsLogin, subject: SubjectTemplate, server: Path | str | None) -> None:
    import structlog

    from pulse.bridge.nats import publishing
    from pulse.bridge.outbox import Publisher

    log = structlog.get_logger()
    async with publishing(login) as broker, _until_stopped(server) as (client, stopping):
        log.info("outbox_ready", broker=login.shown, subject=subject.text)
        await Publisher(broker, client, subject, stopping=stopping).run()


@asynccontextmanager
async def _until_stopped(server: Path | str | None) -> AsyncGenerator[tuple[AsyncClient, anyio.Event]]:
    """A client, which its first request opens, since the server may be away; and an event: a signal has come."""
    import asyncio

    import anyio

    stopping = anyio.Event()
    for number in _STOPS:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    client = connect_client(server, timeout_s=_ANSWER_S)
    try:
        yield client, stopping
    finally:
        await client.aclose()
