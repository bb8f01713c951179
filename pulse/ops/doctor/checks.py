"""
The one list of all that pulse can find wrong: every tool that tells of it takes its findings from these checks.

`pulse doctor`, `pulse ctl status`, the dashboard, the metric `pulse_finding` and the alert rules tell of a check that
is ``everywhere``. The others are about the place where the doctor itself runs (its installation, files, limits), or may
be as they should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pulse.ops.doctor.finding import State

_WARNING, _WRONG = State.WARNING, State.WRONG


class CheckInfo(NamedTuple):
    """
    What is looked at.

    Attributes:
        title: It in a few words.
        worst: The most severe state that it can have.
        do: What to do, in general; a finding says it in particular.
        page: Of the dashboard, where its finding is shown beside the overview.
        question: The statement of doctor.sql that it judges; '': it judges something else.
        everywhere: Whether all tools tell of it; else only the doctor.
    """

    title: str
    worst: State
    do: str
    page: str
    question: str
    everywhere: bool


# In the order of the report: title, worst state, what to do, page, statement, whether all tools tell of it.
_ROWS: Final[Mapping[str, tuple[str, State, str, str, str, bool]]] = {
    "installation": ("Python and packages", _WRONG, "Install what is missing", "", "", False),
    "configuration": ("The settings", _WRONG, "Correct the setting that it names", "", "", False),
    "runtime-dir": (
        "The directory of the sockets",
        _WRONG,
        "Start the server, or correct owner and mode",
        "",
        "",
        False,
    ),
    "sockets": ("The sockets", _WRONG, "Start the server again", "", "", False),
    "state-dir": ("The state directory", _WRONG, "Make room, or correct owner and mode", "", "", False),
    "kernel": ("What the kernel can do", _WARNING, "Use a newer kernel", "", "", False),
    "limits": ("Limits of the processes", _WARNING, "Raise the limit that it names", "", "", False),
    "processes": ("The server's processes", _WRONG, "Look at `pulse ctl logs`; start the server", "/actors", "", True),
    "workers": (
        "The workers",
        _WRONG,
        "Start workers; continue, or end, one that is stopped or hangs",
        "/workers",
        "",
        True,
    ),
    "statements": (
        "Statements that the database refuses",
        _WRONG,
        "Undo what was changed in the database",
        "/actors",
        "",
        True,
    ),
    "memory": (
        "What is kept beside the database",
        _WARNING,
        "Name a directory that can be written to: `PULSE_STATE_DIR`",
        "/actors",
        "",
        True,
    ),
    "database": ("The database", _WRONG, "Look at PostgreSQL, and at `PULSE_DSN`", "/actors", "identity", True),
    "clock": ("The clocks", _WRONG, "Let NTP set both", "/actors", "identity", True),
    "timeline": ("The database's timeline", _WRONG, "Stop the old primary", "/actors", "identity", True),
    "clusters": ("The hosts of the DSN", _WRONG, "Name the hosts of one cluster", "", "clusters", False),
    "pooler": (
        "A pooler in between",
        _WRONG,
        "Let pulse connect directly, or [in session mode](#behind-pgbouncer)",
        "",
        "pooler",
        False,
    ),
    "settings": ("Settings of the database", _WRONG, "Change the setting that it names", "/actors", "settings", True),
    "commits": (
        "Commits that wait for a standby",
        _WRONG,
        "Start the standby, or do without it",
        "/actors",
        "replication",
        True,
    ),
    "standbys": (
        "Standbys that may lack what was acknowledged",
        _WARNING,
        "Replicate synchronously, if one of them may take over",
        "",
        "replication",
        False,
    ),
    "connections": (
        "Room for connections",
        _WRONG,
        "Raise the limit, or end idle ones",
        "/actors",
        "connections",
        True,
    ),
    "role": ("The role", State.OK, "Nothing: a hint", "", "role", False),
    "rights": ("Rights of the role", _WRONG, "Grant what is missing", "/actors", "rights", True),
    "schema": ("The schema", _WRONG, "`pulse migrate`", "", "schema", False),
    "indexes": ("Indexes", _WRONG, "Make, or rebuild, those that it names", "/actors", "indexes", True),
    "additions": (
        "Foreign triggers, rules and references",
        _WRONG,
        "Ask their owner to remove them",
        "/actors",
        "additions",
        True,
    ),
    "xmin": ("Old snapshots", _WRONG, "End the session that it names", "/actors", "xmin", True),
    "transactions": ("Old transactions", _WARNING, "End the session that it names", "/actors", "transactions", True),
    "locks": ("Locks", _WRONG, "End the session that holds the lock", "/actors", "locks", True),
    "tables": ("Dead rows", _WRONG, "Let vacuum work: see `xmin`", "/actors", "tables", True),
    "wraparound": (
        "Transaction ids",
        _WRONG,
        "End what keeps vacuum off, then `VACUUM FREEZE`",
        "/actors",
        "wraparound",
        True,
    ),
    "notifications": (
        "The queue of NOTIFY",
        _WARNING,
        "End the session that does not read it",
        "/actors",
        "notifications",
        True,
    ),
    "watchdog": (
        "The watchdog",
        _WRONG,
        "Start the server, or look at the watchdog's log",
        "/actors",
        "queue_watchdog",
        True,
    ),
    "leases": ("Jobs that nobody runs", _WRONG, "Have a watchdog running", "/workers", "queue_leases", True),
    "topics": ("Jobs that are due", _WRONG, "Start a worker for the topic", "/topics", "queue_topics", True),
    "full-limits": (
        "Limits that are full",
        _WARNING,
        "Raise the limit, or end what holds its slots",
        "/topics",
        "queue_topics",
        True,
    ),
    "groups": (
        "Groups that wait",
        _WARNING,
        "Retry or delete the dead letter that it names",
        "/topics",
        "queue_groups",
        True,
    ),
    "unused-limits": (
        "Limits that limit nothing",
        _WARNING,
        "Name the limit in a topic, or unset it",
        "/topics",
        "queue_limits",
        True,
    ),
    "unhandled": (
        "Jobs without a handler",
        _WRONG,
        "Start a worker that has the handler",
        "/jobs",
        "queue_unhandled",
        True,
    ),
    "waits": (
        "Jobs that wait for others, or for a signal, for a day",
        _WARNING,
        "`pulse ctl jobs why ID`",
        "/jobs",
        "queue_waits",
        True,
    ),
    "gate": ("What is paused", _WARNING, "`pulse ctl dispatch resume`", "/topics", "queue_gate", True),
    "schedules": ("Schedules", _WRONG, "Correct the schedule that it names", "/schedules", "queue_schedules", True),
    "crashes": (
        "Jobs that kill their workers",
        _WRONG,
        "Repair the handler, then retry its dead letters",
        "/dead",
        "queue_attempts",
        True,
    ),
    "hung": (
        "Attempts that ran out of time",
        _WARNING,
        "Look where it hung: `pulse ctl jobs get ID`",
        "/jobs",
        "queue_attempts",
        True,
    ),
    "running": (
        "Handlers without a limit",
        _WARNING,
        "Look where it is: `pulse ctl jobs stack ID`",
        "/jobs",
        "queue_running",
        True,
    ),
    "dead-letters": (
        "Dead letters",
        _WARNING,
        "Remove the cause, then `pulse ctl jobs retry ID`",
        "/dead",
        "queue_dead_letters",
        True,
    ),
    "outbox": (
        "Ends of jobs that no broker gets",
        _WRONG,
        "Start `pulse bridge nats-outbox`",
        "/topics",
        "queue_outbox",
        True,
    ),
    "hosts": ("Hosts", _WRONG, "Start the machine, or its supervisor", "/workers", "queue_hosts", True),
    "epochs": (
        "A database that went back",
        _WARNING,
        "Submit the jobs of the missing time again",
        "/jobs",
        "queue_epochs",
        True,
    ),
    "set-aside": (
        "Jobs that the database refuses",
        _WRONG,
        "`pulse ctl jobs why ID`",
        "/jobs",
        "queue_set_aside",
        True,
    ),
}
CHECKS: Final[Mapping[str, CheckInfo]] = {name: CheckInfo(*row) for name, row in _ROWS.items()}
