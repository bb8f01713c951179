"""Submits and signals jobs in the transaction of Django's own connection: it is done if and only if that commits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Unpack, cast
from uuid import UUID

from asgiref.sync import sync_to_async

from pulse import sql
from pulse.app.call import Call, HandlerRef
from pulse.client.client import Client
from pulse.client.requests import JobOptions, NewJob
from pulse.common.ids import JobId
from pulse.common.wire_values import IdLike
from pulse.contrib.django.connections import connection_of
from pulse.contrib.django.settings import after_changes, project_settings
from pulse.errors import ConfigError

__all__ = ["asignal", "asubmit", "asubmit_many", "client", "signal", "submit", "submit_many"]


def submit(
    handler: HandlerRef,
    args: Mapping[str, object] | None = None,
    *,
    using: str | None = None,
    **options: Unpack[JobOptions],
) -> JobId:
    """
    Submit one job on a connection of Django's: inside ``atomic()`` it exists if and only if that commits.

    There is no need of ``on_commit``, and none of a server that answers.

    Args:
        handler: ``pulse.call(resize, "a.png", width=64)``; or a handler, or its name.
        args: Its keyword arguments.
        using: Alias of the database; by default ``PULSE["DATABASE"]``, else ``default``.
        options: As of ``client.submit``.

    Returns:
        The job's id; its ``is_new`` as of ``client.submit``.

    Raises:
        PulseError: As ``pulse.sql.submit`` says; ConfigError: it is no database of PostgreSQL.
    """
    return cast("JobId", submit_many([{"name": handler, "args": args, **options}], using=using)[0])


def submit_many(jobs: Iterable[NewJob | Call[Any]], *, using: str | None = None) -> list[UUID]:
    """Submit many jobs, all or none; see ``submit``. Returns their ids in order."""
    project = project_settings()
    return sql.submit_many(_connection(using), jobs, codec=project.codec, schema=project.schema)


async def asubmit(
    handler: HandlerRef,
    args: Mapping[str, object] | None = None,
    *,
    using: str | None = None,
    **options: Unpack[JobOptions],
) -> JobId:
    """
    ``submit`` for async views: in the thread in which Django's async methods work, on its connection.

    Django has no ``atomic()`` in async code, so the job is there at once; in an async test it is part of the test's
    transaction. To write rows and a job together, call a plain function with ``atomic()`` by ``sync_to_async``.
    """
    return await sync_to_async(submit)(handler, args, using=using, **options)


async def asubmit_many(jobs: Iterable[NewJob | Call[Any]], *, using: str | None = None) -> list[UUID]:
    """``submit_many`` for async views; see ``asubmit``."""
    return await sync_to_async(submit_many)(jobs, using=using)


def signal(
    job_id: IdLike, name: str, payload: object = None, *, key: str | None = None, using: str | None = None
) -> bool:
    """
    Send a signal to a job on a connection of Django's: inside ``atomic()`` it arrives if and only if that commits.

    Args:
        job_id: The job's id.
        name: What its handler waits for (``ctx.wait_for``).
        payload: Anything that JSON can hold.
        key: The same name and key are the same signal, sent again.
        using: As of ``submit``.

    Returns:
        Whether it is new.

    Raises:
        PulseError: As ``pulse.sql.signal`` says; ConfigError: it is no database of PostgreSQL.
    """
    project = project_settings()
    return sql.signal(_connection(using), job_id, name, payload, key=key, codec=project.codec, schema=project.schema)


async def asignal(
    job_id: IdLike, name: str, payload: object = None, *, key: str | None = None, using: str | None = None
) -> bool:
    """``signal`` for async views; see ``asubmit``."""
    return await sync_to_async(signal)(job_id, name, payload, key=key, using=using)


def _connection(using: str | None) -> Any:  # noqa: ANN401 - Django has no types
    alias = project_settings().database if using is None else using
    connection = connection_of(alias)
    if connection.vendor != "postgresql":
        raise ConfigError(f"database {alias!r} is {connection.display_name}: jobs are in PostgreSQL")
    return connection


@functools.cache
def client() -> Client:
    """
    The client of this process, by the settings of the project: for what SQL does not do, such as waiting for a job.

    It connects when it is first used. Threads may share it, and a forked process gets a connection of its own.

    Raises:
        ConfigError: A setting is not allowed.
    """
    project = project_settings()
    return Client(project.server(), codec=project.codec, connect_timeout_s=project.connect_timeout_s)


after_changes(client.cache_clear)
