-- Jobs that the database refuses one by one: they are set aside, so that all others go on.


-- name: set_aside_jobs :many
-- What:    set jobs aside that the database refuses, so that claims and other statements leave them out.
-- Args:    $1 ids uuid[] (sorted), $2 SQLSTATEs text[], $3 statements text[], $4 errors text[] (same length), $5 pause_s float8
--          until each is tried by itself, $6 most int: do nothing if so many are set aside already (NULL: no limit)
-- Guard:   the primary key; one that an operator set aside stays so.   Returns: ids of those that were not set aside before.
WITH noted AS (
    INSERT INTO pulse.set_aside AS s (job_id, sqlstate, statement, error, next_try_at)
    SELECT d.id, d.sqlstate, d.statement, d.error, clock_timestamp() + $5 * interval '1 second'
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS d(id, sqlstate, statement, error)
    WHERE $6::int IS NULL OR (SELECT count(*) FROM pulse.set_aside) < $6
    ON CONFLICT (job_id) DO UPDATE SET sqlstate = excluded.sqlstate, statement = excluded.statement, error = excluded.error,
        tries = s.tries + 1, next_try_at = greatest(s.next_try_at, excluded.next_try_at)
    RETURNING s.job_id, s.tries
)
SELECT uuid_send(n.job_id) AS id FROM noted n WHERE n.tries = 1;


-- name: next_set_aside :one
-- What:    the next job to try by itself; the others come before it is tried again.
-- Args:    $1 pause_s float8 until its next turn
-- Guard:   SKIP LOCKED: of several servers one tries it.
-- Returns: id, status (NULL: it is gone), topic, group, priority, due time (Unix), whether it has expired: no claim takes it any more, the
--          statement that was refused, its SQLSTATE; or nothing.
WITH mine AS (
    SELECT s.job_id FROM pulse.set_aside s WHERE s.next_try_at <= clock_timestamp()
    ORDER BY s.next_try_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE pulse.set_aside s SET next_try_at = clock_timestamp() + $1 * interval '1 second', tries = s.tries + 1
FROM mine m LEFT JOIN pulse.jobs j ON j.id = m.job_id
WHERE s.job_id = m.job_id
RETURNING uuid_send(s.job_id) AS id, j.status::text AS status, j.topic, j.group_key, j.priority, date_part('epoch', j.next_run_at) AS due_s,
    j.expires_at <= clock_timestamp() AS expired, s.statement, s.sqlstate;


-- name: readmit_like :exec
-- What:    try jobs again at once whose claim was refused with a SQLSTATE that no longer occurs for another job.   Args: $1 SQLSTATE text
-- Guard:   jobs that an operator set aside, and jobs whose report is refused, stay so.   Returns: nothing.
DELETE FROM pulse.set_aside s WHERE s.sqlstate = $1 AND s.statement IN ('claim_jobs', 'claim_limited') AND s.next_try_at <> 'infinity';


-- name: readmit_jobs :exec
-- What:    the database accepts these jobs again.   Args: $1 ids uuid[]
-- Guard:   jobs that an operator set aside stay so.   Returns: nothing.
DELETE FROM pulse.set_aside s WHERE s.job_id = ANY ($1::uuid[]) AND s.next_try_at <> 'infinity';


-- name: set_aside_for_good :many
-- What:    set a job aside until it is deleted, since the database refused an operator's change of it.
-- Args:    $1 id uuid, $2 SQLSTATE, $3 statement, $4 error.   Guard: the job is there.   Returns: id.
INSERT INTO pulse.set_aside AS s (job_id, next_try_at, sqlstate, statement, error)
SELECT j.id, 'infinity', $2, $3, $4 FROM pulse.jobs j WHERE j.id = $1
ON CONFLICT (job_id) DO UPDATE SET next_try_at = 'infinity', tries = s.tries + 1, sqlstate = excluded.sqlstate,
    statement = excluded.statement, error = excluded.error
RETURNING uuid_send(s.job_id) AS id;


-- name: lift_jobs :exec
-- What:    these jobs are no longer set aside, even if an operator did it.   Args: $1 ids uuid[]
-- Guard:   the primary key.   Returns: nothing.
DELETE FROM pulse.set_aside s WHERE s.job_id = ANY ($1::uuid[]);


-- name: delete_set_aside :many
-- What:    remove jobs that are set aside, with their history, whatever their status: no other statement can change them.
-- Args:    $1 ids uuid[]
-- Guard:   that they are set aside; locked in id order.   Returns: ids that are gone. No long column is read: it may be corrupt.
WITH target AS (
    SELECT j.id FROM pulse.jobs j JOIN pulse.set_aside s ON s.job_id = j.id WHERE j.id = ANY ($1::uuid[]) ORDER BY j.id FOR UPDATE OF j
), gone AS (
    DELETE FROM pulse.jobs j USING target t WHERE j.id = t.id RETURNING j.id
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE a.job_id = g.id
), aside AS (
    DELETE FROM pulse.set_aside s USING gone g WHERE s.job_id = g.id
)
SELECT uuid_send(g.id) AS id FROM gone g;


-- name: claimable_jobs :many
-- What:    the jobs that a claim would look at, to find the one for which it fails: no column is read that may be corrupt.
-- Args:    $1 topics text[] of a full claim, $2 limit int, $3 level topics text[], $4 level priorities smallint[], $5 from when
--          float8[] (all as for claim_jobs), $6 now, $7 groups text[] of the levels (as for claim_limited; beyond its end: none)
-- Guard:   none: reads.   Returns: id, topic, group, priority, due time (Unix), in the order in which they are served.
WITH RECURSIVE found AS (
    SELECT t.topic, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = t.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM unnest($1::text[]) AS t(topic)
    UNION ALL
    SELECT l.topic, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
        AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
    FROM found l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT f.topic, NULL AS group_key, f.priority, '-infinity'::timestamptz AS from_at FROM found f WHERE f.priority IS NOT NULL
    UNION ALL
    SELECT k.topic, k.group_key, k.priority, coalesce(to_timestamp(k.from_s), coalesce($6, now()) - interval '5 seconds')
    FROM unnest($3::text[], $4::smallint[], $5::float8[], $7::text[]) AS k(topic, priority, from_s, group_key)
)
SELECT uuid_send(p.id) AS id, l.topic, l.group_key, l.priority, date_part('epoch', p.next_run_at) AS due_s
FROM levels l
CROSS JOIN LATERAL (
    (SELECT j.id, j.next_run_at FROM pulse.jobs j
     WHERE l.group_key IS NULL AND j.topic = l.topic AND j.priority = l.priority AND j.group_key IS NULL
       AND j.status IN ('PENDING', 'RETRYING') AND j.next_run_at >= l.from_at AND j.next_run_at <= coalesce($6, now())
       AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
     ORDER BY j.next_run_at LIMIT $2)
    UNION ALL
    (SELECT j.id, j.next_run_at FROM pulse.jobs j
     WHERE j.topic = l.topic AND j.group_key = l.group_key AND j.priority = l.priority AND
           -- :include waits_in_group
       AND j.next_run_at >= l.from_at AND j.next_run_at <= coalesce($6, now())
       AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
     ORDER BY j.next_run_at LIMIT $2)) AS p
ORDER BY l.priority DESC, p.next_run_at LIMIT $2;
