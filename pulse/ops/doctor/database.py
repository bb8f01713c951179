"""Verdicts on the database server: version, settings, rights, the schema and its indexes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from pulse.ops.doctor.finding import Finding, Row, State, list_some, shown_bytes, shown_s, verdict_of
from pulse.security.schema_name import DEFAULT

OLDEST: Final = 150_000
NEWEST: Final = 189_999
SKEW_S: Final = 1.0  # `--at` and `--until` are computed here, and compared there
WRONG_SKEW_S: Final = 60.0
FEW_FREE: Final = 10  # four actors and their pools, a restart of each, and an operator
NONE_FREE: Final = 3
FULL_SHARE: Final = 0.9
BLOATED_BYTES: Final = 64 * 1024**2  # a smaller one costs nothing worth a finding
BLOATED_ENTRY_BYTES: Final = 500  # an entry has 40 to 120 bytes, of a long topic 240; pages are at least half full
_ADDED: Final = {
    "trigger": "{name} is on {home}, and not pulse's: it can refuse rows, or drop them without a word",
    "rule": "{name} is on {home}: what pulse writes there may go elsewhere, or nowhere",
    "reference": "of {name} leads to {home}: jobs that it names are not deleted when their retention ends",
    "row security": "is on for {home}: rows that no policy shows are not there for pulse, if it does not own the table",
}
_ENCODINGS: Final = {"SQL_ASCII": "what others write there may not be readable"}
_OTHERS: Final = "jobs with other characters in names, args, results or errors cannot be written"
_SEE_ALL: Final = "see the sessions of others"

# Setting, harmless values, the effect of others, whether that is wrong or only a warning.
_HARMLESS: Final[Sequence[tuple[str, frozenset[str], str, bool]]] = (
    ("fsync", frozenset({"on"}), "a crash of the machine can destroy the database", True),
    ("full_page_writes", frozenset({"on"}), "a crash of the machine can destroy pages", False),
    ("synchronous_commit", frozenset({"on", "local", "remote_write", "remote_apply"}),
     "a crash loses claims, and gives their attempt numbers again", True),
    ("autovacuum", frozenset({"on"}), "dead rows are never removed, and claims become slower and slower", True),
    ("track_counts", frozenset({"on"}), "autovacuum does nothing without it", True),
    ("default_transaction_isolation", frozenset({"read committed"}), "statements fail that go on by default", True),
    ("default_transaction_read_only", frozenset({"off"}), "nothing can be written", True),
    ("idle_session_timeout", frozenset({"0"}), "idle connections of pulse are cut, and made again", False),
)  # fmt: skip
_LIMITS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
HANGS_S: Final = (
    5.0  # a commit that waits for so long: a statement may take as long, and its answer waits for the commit
)
_ALONE: Final = frozenset({"off", "local"})  # with these a commit waits for no standby
_HOW_MANY: Final = re.compile(r"\s*(?:FIRST\s+|ANY\s+)?(\d+)\s*\(", re.IGNORECASE)
_SHORT_MS: Final = 5_000  # what pulse itself allows its statements


def server(rows: Sequence[Row], _grace_s: float, *, shown: str) -> Finding:
    """Whether pulse works on this server."""
    (row,) = rows
    who = f"PostgreSQL {row['version']}{f' at {shown}' if shown else ''}"
    wrong: list[str] = []
    warnings: list[str] = []
    if row["version_num"] < OLDEST:
        wrong.append(f"{who} is too old: 15 to 18 are supported")
    elif row["version_num"] > NEWEST:
        warnings.append(f"{who} is newer than what pulse was tested with: 15 to 18 are supported")
    if row["in_recovery"]:
        wrong.append(f"{who} is a standby: it takes no writes")
    if row["encoding"] != "UTF8":
        wrong.append(f"{who} stores text as {row['encoding']}, not UTF8: {_ENCODINGS.get(row['encoding'], _OTHERS)}")
    return verdict_of(
        "database",
        wrong,
        warnings,
        f"{who} answers",
        "Name a primary of a supported version in PULSE_DSN, with a database in UTF8:",
        "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
    )


def clock(rows: Sequence[Row], _grace_s: float) -> Finding:
    """How far the clocks of this host and of the database are apart, beyond what the question itself took."""
    (row,) = rows
    skew_s: float = row["skew_s"]
    far = max(0.0, abs(skew_s) - row["trip_s"] / 2)
    words = f"the database's clock is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this host's"
    return verdict_of(
        "clock",
        [words] if far >= WRONG_SKEW_S else [],
        [words] if SKEW_S <= far < WRONG_SKEW_S else [],
        f"this host and the database agree to {max(abs(skew_s), 0.001):.3f} s",
        "Let NTP set both clocks: times that a client computes are compared with the database's.",
    )


def clusters(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether all hosts of the DSN are of one cluster: a failover to another one finds other jobs, or none."""
    ids = {row["system_id"] for row in rows}
    return verdict_of(
        "clusters",
        [f"PULSE_DSN names hosts of {len(ids)} clusters"] if len(ids) > 1 else [],
        [],
        "all hosts of PULSE_DSN that answer are of one cluster",
        *(f"{row['host']} is of cluster {row['system_id']}" for row in rows),
        "Name the hosts of one cluster: a primary and its standbys.",
    )


def pooler(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether there is a pooler, and of which kind."""
    (row,) = rows
    if not row["is_between"]:
        return Finding("pooler", State.OK, "pulse is connected to the database directly")
    if row["keeps_session"]:
        return Finding(
            "pooler",
            State.WARNING,
            "pulse is connected through a pooler, which keeps sessions apart",
            advice=("Let pulse connect directly, if you can: it keeps its few connections anyway.",),
        )
    return Finding(
        "pooler",
        State.WRONG,
        "pulse is connected through a pooler, which gives each transaction another session",
        details=("settings of the session, prepared statements and LISTEN do not work through it",),
        advice=("Let pulse connect directly, or by a pool in session mode; SQL `pulse.submit` works through any.",),
    )


def settings(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Settings of the server, the database or the role that hurt."""
    values = {row["name"]: str(row["value"]) for row in rows}
    wrong: list[str] = []
    warnings: list[str] = []
    for name, harmless, what, is_wrong in _HARMLESS:
        if values.get(name, next(iter(harmless))) not in harmless:
            (wrong if is_wrong else warnings).append(f"{name} is {values[name]}: {what}")
    for name in _LIMITS:
        limit_ms = int(values.get(name, "0"))
        if 0 < limit_ms < _SHORT_MS:
            warnings.append(
                f"{name} is {limit_ms} ms: pulse sets its own, but for SQL and through poolers this one counts"
            )
    return verdict_of(
        "settings",
        wrong,
        warnings,
        "no setting of server, database or role disturbs pulse",
        "ALTER ROLE … SET, ALTER DATABASE … SET, or postgresql.conf; then restart the actors.",
    )


def commits(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether commits wait for synchronous standbys that are not there, or do not answer."""
    (row,) = rows
    needed = _needed(row)
    wrong: list[str] = []
    if row["waiting"] and row["waited_s"] >= HANGS_S:
        commits = "1 commit has" if row["waiting"] == 1 else f"{row['waiting']} commits have"
        wrong.append(f"{commits} waited for a synchronous standby for {shown_s(row['waited_s'])}")
    if row["synchronous"] < needed and not row["hidden"]:
        wrong.append(f"{row['synchronous']} of {needed} synchronous standbys are connected: every commit waits")
    return verdict_of(
        "commits",
        wrong,
        [],
        "no commit waits for a standby",
        "Nothing is submitted, started or completed meanwhile, and nothing is lost; handlers run on.",
        f"Start what synchronous_standby_names names ({row['awaited']}), or shorten it and reload.",
    )


def standbys(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether a standby may take over without having all that was acknowledged."""
    (row,) = rows
    count: int = row["standbys"]
    told = f"{count} standby replicates" if count == 1 else f"{count} standbys replicate"
    found: list[str] = []
    if count and not row["in_recovery"] and not row["awaited"]:
        found = [f"{told} asynchronously: a failover can lose jobs and results that were acknowledged"]
    elif count and not row["in_recovery"] and row["waits"] in _ALONE:
        found = [f"synchronous_commit is {row['waits']}: no commit waits for the standbys {row['awaited']}"]
    return verdict_of(
        "standbys",
        [],
        found,
        f"{told} what was acknowledged" if count else "no standby is connected",
        "Replicate synchronously: docs/high-availability.md, What an acknowledgement is worth.",
        "Where none of them ever takes over (one for reports, a backup) nothing is wrong.",
    )


def _needed(row: Row) -> int:
    """How many synchronous standbys a commit waits for."""
    if not row["awaited"] or row["waits"] in _ALONE or row["in_recovery"]:
        return 0
    match = _HOW_MANY.match(row["awaited"])
    return int(match[1]) if match else 1


def connections(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether there is room for more connections: of the server, of the role, of the database."""
    (row,) = rows
    limits = [("the server", row["greatest"] - row["reserved"], row["used"])]
    limits += [("the role", row["role_limit"], row["role_used"])] if row["role_limit"] >= 0 else []
    limits += [("the database", row["database_limit"], row["database_used"])] if row["database_limit"] >= 0 else []
    wrong: list[str] = []
    warnings: list[str] = []
    for whose, limit, used in limits:
        words = f"{used} of {limit} connections of {whose} are in use"
        if limit - used <= NONE_FREE:
            wrong.append(words)
        elif limit - used < FEW_FREE or used > FULL_SHARE * limit:
            warnings.append(words)
    _, limit, used = limits[0]
    return verdict_of(
        "connections",
        wrong,
        warnings,
        f"{used} of {limit} connections are in use",
        "Raise the limit (max_connections, or CONNECTION LIMIT of role or database), or end who keeps idle ones.",
    )


def role(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Whether pulse has more rights than it needs: only a hint."""
    (row,) = rows
    if not row["is_super"] and not row["is_owner"]:
        return Finding("role", State.OK, f"the role {row['name']} owns nothing of pulse and is no superuser")
    what = "is a superuser" if row["is_super"] else "owns the schema, and may change or drop it"
    return Finding(
        "role",
        State.OK,
        f"the role {row['name']} {what}; `pulse migrate --roles` makes one for servers that may do less",
    )


def rights(rows: Sequence[Row], _grace_s: float) -> Finding:
    """Rights that the role needs and lacks."""
    missing = [row for row in rows if not row["is_granted"]]
    needed = [str(row["what"]) for row in missing if not row["what"].startswith(_SEE_ALL)]
    blind = [str(row["what"]) for row in missing if row["what"].startswith(_SEE_ALL)]
    grants = [f"{row['how']};" for row in missing if row["how"] is not None]
    return verdict_of(
        "rights",
        [f"the role may not {needed[0]}", *list_some([f"nor {what}" for what in needed[1:]])] if needed else [],
        [f"the role may not {what}: their snapshots, ages and queries are missing below" for what in blind],
        "the role may do all that pulse does",
        *list_some(grants),
        *(
            ["All of that is in one role: pulse migrate --roles, then GRANT pulse_server TO the role."]
            if needed
            else []
        ),
        *(["GRANT pg_read_all_stats TO the role."] if blind else []),
    )


def schema(rows: Sequence[Row], _grace_s: float, *, name: str = DEFAULT) -> Finding:
    """Whether the schema is there, in a version that this program works with."""
    (row,) = rows
    version, wanted = row["version"], row["wanted"]
    if row["is_development"]:
        text = f"a development version of pulse made the schema {name} (as version {version}): nothing upgrades it"
        advice = (f"Dump what you need of it, then DROP SCHEMA {name} CASCADE.", "pulse migrate")
        return Finding("schema", State.WRONG, text, advice=advice)
    if version == wanted:
        return Finding("schema", State.OK, f"the schema {name} is at version {version}")
    if not version:
        return Finding("schema", State.WRONG, f"the schema {name} is not installed", advice=("pulse migrate",))
    state, but = (State.WARNING, ", and works with that, too") if row["works"] else (State.WRONG, "")
    text = f"the schema {name} is at version {version}; this program has {wanted}{but}"
    todo = "pulse migrate" if version < wanted else "Upgrade pulse here: a newer one has upgraded the schema."
    return Finding("schema", state, text, advice=(todo,))


def indexes(rows: Sequence[Row], _grace_s: float, *, expected: Iterable[str], home: str = DEFAULT) -> Finding:
    """Whether each index is there and valid, and not much larger than what is in it."""
    there = {row["name"] for row in rows}
    wrong = [f"index {name} is missing" for name in sorted(set(expected) - there)]
    wrong += [
        f"index {row['name']} of {home}.{row['home']} is not valid: nobody uses it"
        for row in rows
        if not row["is_valid"]
    ]
    bloated = [
        f"index {row['name']} has {shown_bytes(row['bytes'])} for {max(0, round(row['entries'])):,} entries"
        for row in rows
        if row["is_valid"]
        and row["bytes"] >= BLOATED_BYTES
        and 0 <= row["entries"] * BLOATED_ENTRY_BYTES < row["bytes"]
    ]
    return verdict_of(
        "indexes",
        wrong,
        bloated,
        f"{len(there)} indexes are valid, and no larger than they have to be",
        f"REINDEX INDEX CONCURRENTLY {home}.NAME;   missing ones are in schema.sql. Constraints: `pulse check`.",
    )


def additions(rows: Sequence[Row], _grace_s: float, *, home: str = DEFAULT) -> Finding:
    """Foreign additions to pulse's tables: allowed, and often the cause of what seems to be a fault of pulse."""
    wrong = [
        f"{home}.{row['home']} is unlogged: a crash of the server empties it"
        for row in rows
        if row["what"] == "unlogged"
    ]
    told = [
        f"{row['what']} {_ADDED[row['what']].format(name=row['name'], home=home + '.' + row['home'])}"
        for row in rows
        if row["what"] in _ADDED
    ]
    return verdict_of(
        "additions",
        wrong,
        told,
        "pulse's tables are as pulse made them",
        *([f"ALTER TABLE {home}.NAME SET LOGGED"] if wrong else []),
        *(["Ask its owner: DROP TRIGGER, DROP RULE, ON DELETE SET NULL."] if told else []),
    )
