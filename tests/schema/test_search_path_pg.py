"""No function of the schema uses the caller's search_path, nor objects that others put beside it."""

from __future__ import annotations

import re
from typing import Final

from tests.support.store.helpers import Sql

# Parsed once, when it was made: its names are bound, and no search_path counts.
BOUND: Final = {"resolved_options", "uuid7"}
FENCED: Final = {
    "check_attempt",
    "complete_attempt",
    "unique_holder",
    "add_dependencies",
    "forget_linked",
    "deliver_signal",
    "signal",
    "join_parent",
}  # they find their row by its key, whatever the planner knows
_TRAP: Final = "LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''caught by evil''; END'"
_TRAPPED: Final = """
    SELECT format('CREATE FUNCTION evil.%I(%s) RETURNS %s ', p.proname, pg_get_function_identity_arguments(p.oid),
                  pg_get_function_result(p.oid)) AS made
    FROM pg_proc p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname = ANY ($1::text[])
      AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) AS t JOIN pg_type y ON y.oid = t WHERE y.typtype = 'p')
"""
_SCHEDULE: Final = "0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b"
_JOB: Final = "0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6c"
# How long a function waits for locks; and how it reads.
_PROBES: Final = ["enable_seqscan=off", "enable_hashjoin=off", "enable_mergejoin=off"]
OWN: Final = {
    "count_slots": ["lock_timeout=2s"], "await_claims": ["lock_timeout=1s"],
    "settle": _PROBES, "wait_again": _PROBES,
}  # fmt: skip
# Each function, by itself or from one that calls it.
_CALLS: Final = (
    f"SELECT pulse.submit('n', '{{}}', id => '{_JOB}', expires_in_s => 60, run_at => '2040-01-01Z')",
    f"SELECT pulse.submit('n', '{{}}', id => '{_JOB}')",
    "SELECT pulse.submit('n', topic => 't', priority => 5, group_key => 'g')",
    """SELECT pulse.submit_many('[{"name": "n", "group_key": "g"}]')""",
    f"""SELECT pulse.submit_many('[{{"name": "n", "id": "{_JOB}"}}, {{"name": "m", "expires_in_s": 60}}]')""",
    f"SELECT pulse.submit('n', '{{}}', id => '{_JOB}', unique_key => 'k', on_conflict => 'replace')",
    """SELECT pulse.submit_many('[{"name": "n", "unique_key": "k"}, {"name": "n", "unique_key": "k"}]')""",
    f"SELECT pulse.is_stored_unseen('{_JOB}', 'n', 'default', '{{}}')",
    f"SELECT pulse.create_schedule('n', every_s => 15, jitter_s => 5, id => '{_SCHEDULE}')",
    "SELECT pulse.create_schedule('n', cron => '0 7 * * *', timezone => 'Europe/Berlin')",
    f"""SELECT pulse.set_schedule('{_SCHEDULE}', '{{"jitter_s": 3, "priority": 3}}')""",
    f"SELECT pulse.update_schedule('{_SCHEDULE}', every_s => 30)",
    f"SELECT pulse.pause_schedule('{_SCHEDULE}')",
    f"SELECT pulse.resume_schedule('{_SCHEDULE}')",
    f"SELECT pulse.trigger_schedule('{_SCHEDULE}')",
    f"UPDATE pulse.schedules SET next_run_at = '2040-01-01Z' WHERE id OPERATOR(pg_catalog.=) '{_SCHEDULE}'",
    f"SELECT pulse.jittered('{_SCHEDULE}', '2040-01-01Z', 5)",
    f"SELECT pulse.delete_schedule('{_SCHEDULE}')",
    """SELECT pulse.set_topic('t', '{"timeout_s": 5, "backoff": "exponential:1:60", "max_attempts": 3}')""",
    """SELECT pulse.set_topic('t', '{"timeout_s": null, "backoff": null, "max_attempts": null}')""",
    "SELECT pulse.backoff_s('exponential:1:60', 3), pulse.backoff_s('list:1,2', 1), pulse.backoff_s('quadratic', 2)",
    f"SELECT pulse.event_args('{_JOB}', 'n', 't', 1, 'error', 'why')",
    "SELECT pulse.note('x', topic => 't', detail => '{}'), pulse.uuid7(), pulse.notify_work()",
    """SELECT pulse.set_limit('l', 'g', '{"concurrency": 5}'), pulse.set_limit('l', NULL, '{"group_rate": 5}')""",
    "SELECT pulse.unset_limit('l', 'g'), pulse.unset_limit('l', NULL)",
    f"SELECT pulse.submit('n', after => ARRAY['{_JOB}'::uuid])",
    f"""SELECT pulse.submit_many('[{{"name": "n", "after": ["{_JOB}"]}}]'), pulse.settle(ARRAY['{_JOB}'::uuid])""",
    f"SELECT pulse.signal('{_JOB}', 'approval', '{{}}', 'k'), pulse.signal('{_JOB}', 'approval')",
    f"DELETE FROM pulse.jobs WHERE id OPERATOR(pg_catalog.=) '{_JOB}'",
    "UPDATE pulse.dispatch_control SET paused = false",
)  # fmt: skip


async def test_every_function_has_its_own(connection: Sql) -> None:
    """Its search_path is fixed, with pg_temp last, or it was bound when it was made; few have their owner's rights."""
    rows = await connection.fetch(
        "SELECT proname, proconfig, prosecdef, prosqlbody IS NOT NULL AS bound"
        " FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace"
    )
    assert {row["proname"] for row in rows if row["bound"]} == BOUND
    for row in rows:
        if not row["bound"]:
            assert row["proconfig"][0] == "search_path=pg_catalog, pg_temp", row["proname"]
            more = ["enable_seqscan=off"] if row["proname"] in FENCED else OWN.get(row["proname"], [])
            assert row["proconfig"][1:] == more, row["proname"]
    assert {row["proname"] for row in rows if row["prosecdef"]} == {"note", "is_stored_unseen", *FENCED}


async def test_functions_put_into_the_schema_itself(own_database: str, connection: Sql) -> None:
    """Nothing there shadows what pulse means: a role that may make functions in it gets no rights by that."""
    del own_database
    bodies = await connection.fetch(
        "SELECT pg_get_functiondef(oid) AS text FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace"
    )
    used = sorted({name for row in bodies for name in re.findall(r"\b([a-z_0-9]+)\(", row["text"])})
    made = [row["made"].replace("evil.", "pulse.", 1) + _TRAP for row in await connection.fetch(_TRAPPED, used)]
    assert len(made) > 50
    await connection.execute(";".join(made))
    for call in _CALLS:
        await connection.execute(call)
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 7
