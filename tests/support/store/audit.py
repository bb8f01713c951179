"""
A trigger that records every change of ``pulse.jobs``, and the rules that any such record keeps.

Put it on, let anything run, and ask for violations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pulse.job import TRANSITIONS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

INSTALL: Final = """
    CREATE TABLE public.audit (seq bigserial, ts timestamptz DEFAULT clock_timestamp(), id uuid, old jsonb, new jsonb);
    CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.audit (id, old, new)
        VALUES (coalesce(NEW.id, OLD.id), to_jsonb(OLD), CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
        RETURN NULL;
    END $$;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION public.audit();
    -- A move: what changed the status or the token. o and n: status before and after; ot and nt: attempts.
    CREATE VIEW public.moves AS
    SELECT seq, ts, id, old, new, old->>'status' AS o, new->>'status' AS n,
        (old->>'attempts')::int AS ot, (new->>'attempts')::int AS nt
    FROM public.audit
    WHERE new IS NOT NULL AND old IS NOT NULL
      AND (old->>'status' IS DISTINCT FROM new->>'status' OR old->>'attempts' IS DISTINCT FROM new->>'attempts');
    CREATE TABLE public.legal (o text, n text);
"""
# Each returns one row for each violation.
CHECKS: Final[Mapping[str, str]] = {
    "a RUNNING row has a lease, and no other has one": """
        SELECT id FROM pulse.jobs WHERE (status = 'RUNNING') <> (locked_by IS NOT NULL AND lease_until IS NOT NULL)""",
    "a claim adds 1 to attempts, and nothing else changes them": """
        SELECT id FROM public.moves WHERE nt - ot <> (n = 'RUNNING')::int""",
    "one claim for each attempt": """
        SELECT id FROM public.moves WHERE n = 'RUNNING' GROUP BY id, nt HAVING count(*) > 1""",
    "legal moves only": """
        SELECT id FROM public.moves WHERE (o, n) NOT IN (SELECT o, n FROM public.legal)""",
    "no attempt is charged twice, nor given back twice": """
        SELECT id FROM public.moves
        WHERE (new->>'uncharged')::int - (old->>'uncharged')::int NOT IN (0, 1) AND n <> 'PENDING'""",
    "uncharged never exceeds attempts": """
        SELECT id FROM public.audit WHERE (new->>'uncharged')::int > (new->>'attempts')::int""",
    "an attempt that ended without success left one row of history": """
        SELECT m.id FROM public.moves m LEFT JOIN pulse.attempts a ON a.job_id = m.id AND a.attempt = m.ot
        WHERE m.o = 'RUNNING' AND m.n <> 'COMPLETED' AND a.job_id IS NULL
          AND NOT EXISTS (SELECT FROM public.audit d WHERE d.id = m.id AND d.seq > m.seq AND d.new IS NULL)""",
    "only an attempt that ran has history": """
        SELECT a.job_id FROM pulse.attempts a
        LEFT JOIN public.moves m ON m.id = a.job_id AND m.ot = a.attempt
            AND m.o = CASE a.outcome WHEN 'completed' THEN 'COMPLETED' ELSE 'RUNNING' END
        WHERE m.id IS NULL AND (a.attempt, a.outcome) <> (0, 'expired')""",
    "what expired was waiting, and its time was over": """
        SELECT a.job_id FROM pulse.attempts a
        LEFT JOIN public.moves m ON m.id = a.job_id AND m.o IN ('PENDING', 'RETRYING') AND m.n = 'DEAD_LETTERED'
            AND (m.old->>'expires_at')::timestamptz <= a.ended_at
        WHERE a.outcome = 'expired' AND m.id IS NULL""",
    "a dead letter tells why, and has spent its budget or expired or was discarded or crashed too often": """
        SELECT j.id FROM pulse.jobs j LEFT JOIN pulse.attempts a ON a.job_id = j.id AND a.attempt = j.attempts
        WHERE j.status = 'DEAD_LETTERED'
          AND (coalesce(j.last_error, '') = ''
               OR NOT (j.attempts - j.uncharged >= j.max_attempts OR a.outcome IN ('discarded', 'crashed')
                       OR EXISTS (SELECT FROM pulse.attempts e WHERE (e.job_id, e.outcome) = (j.id, 'expired'))))""",
    "a job is not started before it is due": """
        SELECT id FROM public.moves
        WHERE n = 'RUNNING' AND (new->>'started_at')::timestamptz < (old->>'next_run_at')::timestamptz""",
    "a lease that lives is not reaped": """
        SELECT m.id FROM public.moves m JOIN pulse.attempts a ON a.job_id = m.id AND a.attempt = m.ot
        WHERE m.o = 'RUNNING' AND a.outcome = 'lease_expired' AND (m.old->>'lease_until')::timestamptz >= a.ended_at""",
}


async def install(connection: Connection[Record]) -> None:
    await connection.execute(INSTALL)
    legal = [(source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets]
    await connection.executemany("INSERT INTO public.legal VALUES ($1, $2)", legal)


async def violations(connection: Connection[Record]) -> list[str]:
    found = {rule: await connection.fetch(sql) for rule, sql in CHECKS.items()}
    return [f"{rule}: {len(rows)}, first {rows[0][0]}" for rule, rows in found.items() if rows]
