"""Verdicts on what blocks or slows the queue in the database: snapshots, locks, dead rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pulse.ops.doctor.finding import Finding, Row, list_some, shown_bytes, shown_s, verdict_of
from pulse.security.schema_name import DEFAULT

LONG_S: Final = 3_600.0  # a snapshot that is so old has left behind more dead rows than a table has live ones
MANY_BACK: Final = 100_000  # transactions, some minutes of a busy queue, whatever the clock says; of a slot it is all
MANY_XIDS: Final = 10_000_000
MANY_DEAD: Final = 100_000
FAR_XIDS: Final = 1_000_000_000  # autovacuum acts at 0.2, its failsafe at 1.6, and at 2.1 thousand million all ends
TOO_FAR_XIDS: Final = 1_600_000_000
FULL_USAGE: Final = 0.5  # of the queue of NOTIFY; as in pulse.tell, which tells nothing from there on
MAX_ENDS: Final = 3  # commands that are shown
_QUERY: Final = 80  # characters of a query that are shown


def xmin(rows: Sequence[Row], grace_s: float) -> Finding:
    """Sessions that keep an old snapshot, and so all rows that died since."""
    wrong: list[str] = []
    warnings: list[str] = []
    ends: list[str] = []
    for row in rows:
        age_s, xids = row["age_s"], row["xids"] or 0
        is_old = xids >= MANY_BACK or (row["state"] == "inactive" if age_s is None else age_s >= grace_s)
        if is_old:
            is_wrong = xids >= MANY_XIDS or (age_s is not None and age_s >= LONG_S)
            (wrong if is_wrong else warnings).append(_holder(row))
            ends += [_end(row)] if _end(row) not in ends else []
    return verdict_of(
        "xmin",
        list(list_some(wrong)),
        list(list_some(warnings)),
        f"nobody keeps a snapshot for {shown_s(grace_s)} or longer",
        "While one is kept, no dead row can be removed: tables grow, claims and lists become slower. End it:",
        "   ".join(ends[:MAX_ENDS]),
    )


def transactions(rows: Sequence[Row], grace_s: float) -> Finding:
    """Transactions that are open for long without a snapshot."""
    old = [f"session {_session(row)}" for row in rows if row["age_s"] >= grace_s]
    return verdict_of(
        "transactions",
        [],
        list(list_some(old)),
        f"no other transaction is open for {shown_s(grace_s)} or longer",
        "SELECT pg_terminate_backend(PID);   or let idle_in_transaction_session_timeout do that.",
    )


def locks(rows: Sequence[Row], grace_s: float) -> Finding:
    """Sessions that block writes to a table of pulse, and sessions that wait."""
    wrong: list[str] = []
    warnings: list[str] = []
    for row in rows:
        behind = f", behind pid {', '.join(map(str, row['blockers']))}" if row["blockers"] else ""
        words = f"pid {row['pid']} ({_who(row)}) {row['what']} for {shown_s(row['age_s'] or 0)}{behind}{_query(row)}"
        (wrong if (row["age_s"] or 0) >= grace_s else warnings).append(words)
    return verdict_of(
        "locks",
        list(list_some(wrong)),
        list(list_some(warnings)),
        "nobody locks a table, nobody waits",
        "SELECT pg_terminate_backend(PID) ends the holder; 'behind pid' names it.",
    )


def tables(rows: Sequence[Row], _grace_s: float, *, home: str = DEFAULT) -> Finding:
    """Dead rows, and whether vacuum removes them."""
    wrong = [f"autovacuum is off for {home}.{row['name']}" for row in rows if not row["is_vacuumed"]]
    warnings = [f"{home}.{_dirty(row)}" for row in rows if row["dead"] >= MANY_DEAD and row["dead"] > row["live"]]
    live, dead, size = (sum(row[key] for row in rows) for key in ("live", "dead", "bytes"))
    return verdict_of(
        "tables",
        wrong,
        warnings,
        f"{live:,} live and {dead:,} dead rows in {shown_bytes(size)}",
        f"ALTER TABLE {home}.NAME RESET (autovacuum_enabled);   VACUUM {home}.NAME;   who keeps them: see xmin.",
    )


def wraparound(rows: Sequence[Row], _grace_s: float) -> Finding:
    """How far the database is from the end of its transaction ids."""
    (row,) = rows
    furthest = max(row["xids"], row["multixacts"])
    words = f"the oldest transaction id is {row['xids']:,} back, the oldest multixact {row['multixacts']:,}"
    return verdict_of(
        "wraparound",
        [words] if furthest >= TOO_FAR_XIDS else [],
        [words] if FAR_XIDS <= furthest < TOO_FAR_XIDS else [],
        words,
        "At 2,100,000,000 nothing can be written any more: end what keeps vacuum off (see xmin), then VACUUM FREEZE.",
    )


def notifications(rows: Sequence[Row], _grace_s: float) -> Finding:
    """How full the queue of NOTIFY is, and which session may keep it from being read."""
    usage = rows[0]["usage"]
    words = f"the queue of NOTIFY is {usage:.0%} full"
    holders = [f"session {_session(row)}" for row in rows if row["pid"] is not None]
    return verdict_of(
        "notifications",
        [],
        [words, *holders] if usage >= FULL_USAGE else [],
        words,
        "A session that listens stays in its transaction, one of the oldest: SELECT pg_terminate_backend(PID);",
        "pulse sends no NOTIFY meanwhile and goes on by its polls; at 100 % other programs cannot commit theirs.",
    )


def _holder(row: Row) -> str:
    kind, name, xids = row["kind"], row["name"], f"{row['xids']:,} transactions back"
    if kind == "session":
        return f"session {_session({**row, 'pid': name})}, {xids}"
    if kind == "standby":
        return f"standby of {_who(row)} (walsender {name}) by hot_standby_feedback, {xids}"
    if row["age_s"] is None:
        return f"{kind} {name} ({row['application']}, {row['state']}), {xids}"
    return f"{kind} {name} of {row['user_name']}, prepared {shown_s(row['age_s'])} ago, {xids}"


def _end(row: Row) -> str:
    """The command that ends a holder."""
    name = str(row["name"]).replace("'", "''")
    match row["kind"]:
        case "prepared transaction":
            return f"ROLLBACK PREPARED '{name}';"
        case "replication slot":
            return f"SELECT pg_drop_replication_slot('{name}');"
        case "standby":
            return "hot_standby_feedback = off at that standby"
        case _:
            return f"SELECT pg_terminate_backend({name});"


def _session(row: Row) -> str:
    return (
        f"{row['pid']} ({_who(row)}) has been {row['state'] or 'at work'} for {shown_s(row['age_s'] or 0)}{_query(row)}"
    )


def _who(row: Row) -> str:
    user = row["user_name"] or "unknown user"
    return f"{user}, {row['application']}" if row["application"] else str(user)


def _query(row: Row) -> str:
    text = " ".join(str(row["query"] or "").split())
    return f": {text if len(text) <= _QUERY else text[:_QUERY] + '…'}" if text else ""


def _dirty(row: Row) -> str:
    when = "never vacuumed" if row["vacuumed_s"] is None else f"last vacuumed {shown_s(row['vacuumed_s'])} ago"
    return f"{row['name']} has {row['dead']:,} dead rows beside {row['live']:,} live ones, {when}"
