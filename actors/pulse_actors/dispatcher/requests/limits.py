"""Requests about limits: one function per kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from pulse import protocol
from pulse.errors import BadRequestError, NotFoundError
from pulse.limit import LIMIT_OPTIONS
from pulse.store.operators.limits import LimitStore
from pulse_actors.dispatcher.context import Answer, RequestContext

log = structlog.get_logger()


async def list_limits(on: RequestContext, body: protocol.LimitsList) -> Answer:
    """A page of limits and of groups that differ, in the order of names and groups."""
    after = None if body.after is None else _place(body.after)
    rows = await on.services.store.limits.page(body.limit + 1, after, name=body.name)
    following = _cursor(rows[body.limit - 1]) if len(rows) > body.limit else None
    return {"limits": rows[: body.limit], "next": following}


async def set_limit(on: RequestContext, body: protocol.LimitSet) -> Answer:
    """Set and unset options; on all hosts from the next claim on, since claims read them."""
    if not body.policy:
        raise BadRequestError(f'nothing to set for limit "{body.name:.50}"; one or more options are needed')
    async with on.acting() as store:  # the SQL function writes the audit entry
        await store.limits.begin_to_change()
        await store.limits.set(body.name, body.policy, group=body.group_key)
        row = await store.limits.get(body.name, group=body.group_key)
    await on.services.policies_changed()
    unset = {"name": body.name, "group_key": body.group_key, **dict.fromkeys(LIMIT_OPTIONS)}
    return {"limit": unset if row is None else row}  # a group of which nothing is set has no row


async def unset_limit(on: RequestContext, body: protocol.LimitUnset) -> Answer:
    """Remove a limit with all that differs for its groups, or what differs for one group; it answers what there was."""
    async with on.acting() as store:  # the SQL function writes the audit entry
        await store.limits.begin_to_change()
        row = await store.limits.get(body.name, group=body.group_key)
        if row is None or not await store.limits.unset(body.name, group=body.group_key):
            group = "" if body.group_key is None else f' that differs for the group "{body.group_key:.50}"'
            raise NotFoundError(f'there is no limit "{body.name:.50}"{group}')
    await on.services.policies_changed()
    return {"limit": row}


async def declare_limits(on: RequestContext, body: protocol.LimitsDeclare) -> Answer:
    """
    Make the limits of an application what its code declares; what differs for single groups stays.

    One that the code no longer declares stays in force and is listed in the answer: a person decides about removing it.
    """
    names = [limit.name for limit in body.limits]
    if len({*names}) < len(names):
        raise BadRequestError(f"limit {max(names, key=names.count)!r:.100} is there twice; each is allowed once")
    stored = on.services.store.limits
    wanted = {limit.name: {**dict.fromkeys(LIMIT_OPTIONS), **limit.policy} for limit in body.limits}
    changed = [name for name in sorted(names) if not _is_same(await stored.get(name), wanted[name])]
    if changed:
        async with on.acting() as store:  # all of them, or none; each with its audit entry, by the SQL function
            await store.limits.begin_to_change()
            for name in changed:
                await _declare(store.limits, name, wanted[name], body.by)
        log.info("limits_declared", by=body.by, names=changed[:20], count=len(changed))
        await on.services.policies_changed()
    gone = await stored.undeclare(body.by, names)
    if gone:
        log.warning("limits_not_declared", by=body.by, names=gone[:20], count=len(gone))
    return {"changed": changed, "not_declared": gone}


async def _declare(limits: LimitStore, name: str, policy: Mapping[str, object], by: str) -> None:
    """All processes of a pool declare the same at once: the first changes it, the others find that it has."""
    await limits.declared(name, by)  # first: it waits for a session that sets the limit by SQL
    if not _has_policy(await limits.get(name), policy):
        await limits.set(name, policy)
        await limits.declared(name, by)  # there may have been none before


def _is_same(row: Mapping[str, Any] | None, policy: Mapping[str, object]) -> bool:
    """Whether nothing changes. Two applications may declare the same: then it is the first one's."""
    return (
        row is not None and row["declared_by"] is not None and row["undeclared_at"] is None and _has_policy(row, policy)
    )


def _has_policy(row: Mapping[str, Any] | None, policy: Mapping[str, object]) -> bool:
    return row is not None and {option: row[option] for option in LIMIT_OPTIONS} == policy


def _cursor(row: Mapping[str, Any]) -> str:
    """The place behind a row, as text: both names may have any characters."""
    return f"{len(row['name'])}:{row['name']}{row['group_key'] or ''}"


def _place(cursor: str) -> tuple[str, str | None]:
    length, colon, rest = cursor.partition(":")
    if not colon or not (length.isascii() and length.isdigit()) or not 0 < int(length[:4]) <= len(rest):
        raise BadRequestError(f"after is {cursor!r:.60}; the cursor of a page is allowed")
    return rest[: int(length[:4])], rest[int(length[:4]) :] or None
