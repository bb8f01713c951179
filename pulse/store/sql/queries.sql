-- Every statement of pulse, named. The rules, held by tests:
--   * each block has What, Args, Guard and Returns; one that changes a job's status has From/to, and each move is in
--     pulse.job.TRANSITIONS; a write to a RUNNING job matches id, status, locked_by and attempts.
--   * now is the last argument where time matters: NULL means the database's clock; tests pass their own.
--   * zero rows is an answer (stale, gone, taken), never a reason to repeat.
--   * multi-row writes lock in id order: callers pass arrays sorted by id, and the hot connections' planner settings keep
--     the nested loop that walks them in that order; the others lock by ORDER BY id FOR UPDATE first.
--   * the ids and attempts of a fence come as the text of an array: asyncpg takes a µs longer for each pair that it has
--     to write into arrays itself.
--   * status IN ('PENDING', 'RETRYING') is written out wherever the partial index is wanted (a parameter could not use
--     it), and status::text wherever a primary-key probe is wanted (so that the planner cannot prefer the partial index
--     of RUNNING rows, which it takes for tiny).
--   * the hot statements find their rows by id BETWEEN x AND x: it is the same probe as id = x, but an equality would also
--     offer a walk through the whole primary key in id order (for a merge, even where merge joins are off). The planner
--     takes that for a table that is small or was when it was analysed, and keeps the plan: 210 ms instead of 4 for 500
--     heartbeats among 5000 jobs.


-- name: submit_jobs :many
-- What:    insert jobs, resolving topic, max_attempts and timeout_s: job, else handler, else topic, else server.   From/to: none -> PENDING
-- Args:    $1 ids uuid[], $2 names text[], $3 args text[], $4 topics text[], $5 priorities smallint[], $6 run_at float8[] (Unix),
--          $7 delay_s float8[], $8 max_attempts int[], $9 timeout_s float8[], $10 expires_at float8[] (Unix), $11 expires_in_s
--          float8[], $12 traceparents text[] (same length; NULL elements: resolve; from $4 on they may be shorter:
--          NULL), $13 now
-- Guard:   the primary key: an id that exists raises 23505, and nothing of the whole call is inserted. In id order: two
--          servers that get the same jobs in another order wait for each other, but never in a circle.
-- Returns: the levels (topic, priority) that got work, with the first due time of what is due now (Unix seconds; NULL: nothing
--          is): what to wake; and how many jobs they got.
WITH put AS (
    INSERT INTO pulse.jobs (id, name, args, topic, priority, submitted_at, next_run_at, max_attempts, timeout_s, expires_at, traceparent)
    SELECT d.id, d.name, d.args::jsonb, coalesce(d.topic, h.topic, 'default'), coalesce(d.priority, 0),
           coalesce($13, clock_timestamp()),
           coalesce(to_timestamp(d.run_at), coalesce($13, now()) + coalesce(d.delay_s, 0) * interval '1 second')
               + (d.place - 1) * interval '1 microsecond',
           coalesce(d.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')),
           coalesce(d.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')),
           coalesce(to_timestamp(d.expires_at), coalesce($13, now()) + d.expires_in_s * interval '1 second'), d.traceparent
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::float8[], $7::float8[], $8::int[], $9::float8[],
                $10::float8[], $11::float8[], $12::text[])
        WITH ORDINALITY AS d(id, name, args, topic, priority, run_at, delay_s, max_attempts, timeout_s, expires_at, expires_in_s, traceparent,
                             place)
    LEFT JOIN pulse.handlers h ON h.name = d.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(d.topic, h.topic, 'default')
    ORDER BY d.id
    RETURNING topic, priority, next_run_at
)
SELECT topic, priority, extract(epoch FROM min(next_run_at) FILTER (WHERE next_run_at <= coalesce($13, now()) + interval '1 second'))::float8
    AS due_s, count(*)::int AS jobs FROM put GROUP BY topic, priority;


-- name: submit_and_claim :many
-- What:    insert due jobs for which workers have room, and hand them out: each is written once less, and waits for the disk once
--          less, than by submit_jobs and claim_jobs.   From/to: none -> PENDING, RUNNING
-- Args:    $1 ids uuid[], $2 names text[], $3 args text[], $4 topics text[], $5 priorities smallint[], $6 max_attempts int[],
--          $7 timeout_s float8[], $8 expires_at float8[] (Unix), $9 expires_in_s float8[] (as above), $10 workers text[] (of each
--          job), $11 topics text[] that they serve, $12 lease_s float8, $13 traceparents text[] (of
--          each job, as above), $14 witness uuid, $15 its counter bigint, $16 epoch int, $17 start of the server
--          timestamptz, $18 table oid (of the fence, as of claim_jobs), $19 now
-- Guard:   the primary key, as above, and the fence, as of claim_jobs: without it nothing is RUNNING; what is RUNNING at once is what a claim could take: of a topic that they serve, not paused,
--          not expired. The others are PENDING. That nothing else waits for these places is up to the caller.
-- Returns: the jobs, as claim_jobs does where that is not the same for all; no attempt and no worker: it is PENDING.
WITH clock AS MATERIALIZED (SELECT coalesce($19, clock_timestamp()) AS at), fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM (SELECT n.* FROM pulse.epochs n ORDER BY n.epoch DESC LIMIT 1) AS e
    WHERE ($14::uuid IS NULL OR (e.epoch = $16 AND pg_postmaster_start_time() = $17 AND EXISTS (
          SELECT FROM pulse.witnesses w WHERE w.instance = $14 AND w.counter >= $15 AND w.tableoid = $18)))
)
INSERT INTO pulse.jobs (id, name, args, topic, priority, submitted_at, next_run_at, max_attempts, timeout_s, expires_at, traceparent,
                        status, attempts, uncharged, locked_by, started_at, lease_until)
SELECT n.id, n.name, n.args, n.topic, n.priority, coalesce($19, clock_timestamp()), n.due_at, n.max_attempts, n.timeout_s, n.expires_at, n.traceparent,
       CASE WHEN n.is_open THEN 'RUNNING' ELSE 'PENDING' END::pulse.job_status,
       CASE WHEN n.is_open THEN n.floor + 1 ELSE 0 END, CASE WHEN n.is_open THEN n.floor ELSE 0 END, CASE WHEN n.is_open THEN n.worker END,
       CASE WHEN n.is_open THEN greatest((SELECT c.at FROM clock c), n.due_at) END,
       CASE WHEN n.is_open THEN coalesce($19, clock_timestamp()) + $12 * interval '1 second' END
FROM (
    SELECT r.*, CASE WHEN f.attempts_floor > 0 AND (r.id < f.first_id OR get_byte(uuid_send(r.id), 6) >> 4 <> 7
                                                    OR r.id >= '04000000-0000-0000-0000-000000000000')
                     THEN f.attempts_floor ELSE 0 END AS floor,
           r.topic = ANY ($11::text[]) AND f.first_id IS NOT NULL AND coalesce(r.expires_at > greatest((SELECT c.at FROM clock c), r.due_at), true)
               AND NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', r.topic)
                                 AND coalesce(g.paused_until > coalesce($19, now()), true)) AS is_open
    FROM (
        SELECT d.id, d.name, d.args::jsonb AS args, coalesce(d.topic, h.topic, 'default') AS topic, coalesce(d.priority, 0) AS priority,
               coalesce($19, now()) + (d.place - 1) * interval '1 microsecond' AS due_at,
               coalesce(d.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')) AS max_attempts,
               coalesce(d.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')) AS timeout_s,
               coalesce(to_timestamp(d.expires_at), coalesce($19, now()) + d.expires_in_s * interval '1 second') AS expires_at,
               d.worker, d.traceparent
        FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::int[], $7::float8[], $8::float8[], $9::float8[],
                    $10::text[], $13::text[])
            WITH ORDINALITY AS d(id, name, args, topic, priority, max_attempts, timeout_s, expires_at, expires_in_s, worker, traceparent, place)
        LEFT JOIN pulse.handlers h ON h.name = d.name
        LEFT JOIN pulse.topics t ON t.topic = coalesce(d.topic, h.topic, 'default')
    ) AS r LEFT JOIN fence f ON true
) AS n
ORDER BY n.id
RETURNING uuid_send(id) AS id, attempts, name, topic, args::text AS args, timeout_s, priority,
    date_part('epoch', next_run_at) AS due_at, locked_by AS worker, traceparent;


-- name: submit_again :many
-- What:    the same for one request some of whose ids may exist already: a submit whose answer was lost.   From/to: none -> PENDING
-- Args:    $1 ids uuid[], $2 names text[], $3 args text[], $4 topics text[], $5 priorities smallint[], $6 run_at float8[],
--          $7 delay_s float8[], $8 max_attempts int[], $9 timeout_s float8[], $10 expires_at float8[], $11 expires_in_s float8[]
--          $12 traceparents text[] (as above), $13 now
-- Guard:   ON CONFLICT (id) DO NOTHING; the caller compares what was there (submitted_differently) in the same transaction.
-- Returns: the levels (topic, priority) that got work, as above.
WITH put AS (
    INSERT INTO pulse.jobs (id, name, args, topic, priority, submitted_at, next_run_at, max_attempts, timeout_s, expires_at, traceparent)
    SELECT d.id, d.name, d.args::jsonb, coalesce(d.topic, h.topic, 'default'), coalesce(d.priority, 0),
           coalesce($13, clock_timestamp()),
           coalesce(to_timestamp(d.run_at), coalesce($13, now()) + coalesce(d.delay_s, 0) * interval '1 second')
               + (d.place - 1) * interval '1 microsecond',
           coalesce(d.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')),
           coalesce(d.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')),
           coalesce(to_timestamp(d.expires_at), coalesce($13, now()) + d.expires_in_s * interval '1 second'), d.traceparent
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::float8[], $7::float8[], $8::int[], $9::float8[],
                $10::float8[], $11::float8[], $12::text[])
        WITH ORDINALITY AS d(id, name, args, topic, priority, run_at, delay_s, max_attempts, timeout_s, expires_at, expires_in_s, traceparent,
                             place)
    LEFT JOIN pulse.handlers h ON h.name = d.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(d.topic, h.topic, 'default')
    ORDER BY d.id
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, priority, next_run_at
)
SELECT topic, priority, extract(epoch FROM min(next_run_at) FILTER (WHERE next_run_at <= coalesce($13, now()) + interval '1 second'))::float8
    AS due_s, count(*)::int AS jobs FROM put GROUP BY topic, priority;


-- name: submitted_differently :many
-- What:    which of these ids hold another job than the one submitted, or none.
-- Args:    $1 ids uuid[], $2 names text[], $3 args text[], $4 topics text[] (NULL elements: resolve)
-- Guard:   none: reads.
-- Returns: ids whose row has another name, topic or args, or is_missing.
SELECT d.id, j.id IS NULL AS is_missing
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS d(id, name, args, topic)
LEFT JOIN pulse.handlers h ON h.name = d.name
LEFT JOIN pulse.jobs j ON j.id = d.id
WHERE j.id IS NULL OR j.name <> d.name OR j.topic <> coalesce(d.topic, h.topic, 'default') OR j.args <> d.args::jsonb;


-- name: claim_jobs :many
-- What:    hand out due jobs, highest priority first, then by due time; opens their leases.   From/to: PENDING, RETRYING -> RUNNING
-- Args:    $1 topics text[] of a full claim (in the order in which equal priorities are served), $2 limit int, $3 workers text[],
--          $4 seats int[] (for the n-th job: index into workers; beyond its end: 1), $5 lease_s float8,
--          $6 level topics text[], $7 level priorities smallint[], $8 from when float8[] (Unix; NULL: what became due
--          in the last 5 s; same length, in the order in which levels are served) where it is none; $9 ageing_s float8[] (of
--          the topics of $1 or $6: seconds of waiting that are worth one priority, NULL: strict; $9 NULL: none of them
--          ages), $10 witness uuid, $11 its counter bigint, $12 epoch int, $13 start of the server timestamptz, $14 table oid (of
--          fence; $10 NULL: no dispatcher asks), $15 ids uuid[]: these alone, also where they are set aside (NULL: any that is not), $16 now
-- Guard:   the fence: the database knows all that this dispatcher has seen of it, is the very one, and no newer epoch has begun.
--          Else nothing is claimed. The gate, until the time at which a pause ends; status IN ('PENDING', 'RETRYING'), due, not expired
--          and not set aside, under SKIP LOCKED, and status again in the outer UPDATE (a row that changed between the two is not claimed twice).
-- Returns: the claimed jobs. Each level (topic, priority) is a range scan that ends at now: what is not due is never read.
--          It begins where the caller says that it claimed last, so it does not meet the dead entries before; a full claim
--          begins at the start, and finds the levels by a loose index scan.
--          LIMIT outside the LATERAL stops it before the next level is touched.
--          Where topics age, a job's rank is its priority and what its waiting is worth. Within a level that is the order of
--          due times, so the levels are merged: from each as many as there are seats, but of all but the best level none that
--          ranks below the last one that this level alone would fill them with. No row is rewritten for it.
--          A job that may be older than the newest epoch gets an attempt above all that were ever handed out: that is charged to nobody.
--          Expiry is held against a clock that is read when the first rows are, not when the statement was sent: it may have
--          waited for a lock on the table since. Jobs start at that very moment, so none starts after its time.
--          A claim ends after 8 MiB of args, checkpoints, and what the attempt before came to (its error and progress): what it returns has to fit into memory, and through a socket, at
--          once. Short args are not measured: their text is not longer than 2000 bytes by much, if they are not compressed.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($16, clock_timestamp()) AS at
), fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM (SELECT n.* FROM pulse.epochs n ORDER BY n.epoch DESC LIMIT 1) AS e
    WHERE ($10::uuid IS NULL OR (e.epoch = $12 AND pg_postmaster_start_time() = $13 AND EXISTS (
          SELECT FROM pulse.witnesses w WHERE w.instance = $10 AND w.counter >= $11 AND w.tableoid = $14)))
), open AS (
    SELECT t.topic, t.age_s, t.place FROM unnest($1::text[], $9::float8[]) WITH ORDINALITY AS t(topic, age_s, place)
    WHERE NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', t.topic)
                        AND coalesce(g.paused_until > coalesce($16, now()), true))
), found AS (
    SELECT o.topic, o.age_s, o.place, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = o.topic AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM open o
    UNION ALL
    SELECT l.topic, l.age_s, l.place, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.status IN ('PENDING', 'RETRYING')
        AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
    FROM found l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT f.topic, f.priority, '-infinity'::timestamptz AS from_at, f.age_s, f.place FROM found f WHERE f.priority IS NOT NULL
    UNION ALL
    SELECT k.topic, k.priority, coalesce(to_timestamp(k.from_s), coalesce($16, now()) - interval '5 seconds'), k.age_s, k.place
    FROM unnest($6::text[], $7::smallint[], $8::float8[], $9::float8[]) WITH ORDINALITY AS k(topic, priority, from_s, age_s, place)
    WHERE NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', k.topic)
                        AND coalesce(g.paused_until > coalesce($16, now()), true))
), ranked AS MATERIALIZED (
    SELECT w.*, w.priority + coalesce(extract(epoch FROM coalesce($16, now()) - h.next_run_at)::float8 / w.age_s, 0) AS rank
    FROM levels w
    CROSS JOIN LATERAL (
        SELECT q.next_run_at FROM pulse.jobs q
        WHERE q.topic = w.topic AND q.priority = w.priority AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= w.from_at AND q.next_run_at <= coalesce($16, now())
        ORDER BY q.next_run_at LIMIT 1) AS h
    WHERE $9::float8[] IS NOT NULL
), bar AS MATERIALIZED (
    SELECT b.priority + coalesce(extract(epoch FROM coalesce($16, now()) - n.next_run_at)::float8 / b.age_s, 0) AS rank
    FROM (SELECT * FROM ranked ORDER BY rank DESC, place LIMIT 1) AS b
    CROSS JOIN LATERAL (
        SELECT q.next_run_at FROM pulse.jobs q
        WHERE q.topic = b.topic AND q.priority = b.priority AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= b.from_at AND q.next_run_at <= coalesce($16, now())
        ORDER BY q.next_run_at OFFSET $2 - 1 LIMIT 1) AS n
), cut AS (
    SELECT r.*, CASE
        WHEN r.priority >= coalesce((SELECT rank FROM bar), r.priority) OR r.rank >= (SELECT max(rank) FROM ranked) THEN coalesce($16, now())
        WHEN r.age_s IS NULL THEN '-infinity'
        ELSE coalesce($16, now()) - least(((SELECT rank FROM bar) - r.priority) * r.age_s, 6.4e10) * interval '1 second' END AS until_at
    FROM ranked r
), picked AS (
    (SELECT p.id, p.next_run_at, p.size, l.priority::float8 AS rank
    FROM (SELECT * FROM levels WHERE $9::float8[] IS NULL ORDER BY priority DESC, place) AS l
    CROSS JOIN LATERAL (
        SELECT j.id, j.next_run_at,
               CASE WHEN pg_column_size(j.args) > 2000 OR pg_column_compression(j.args) IS NOT NULL
                    THEN octet_length(j.args::text) ELSE 2000 END + coalesce(octet_length(j.checkpoint::text), 0)
               + coalesce(octet_length(to_json(j.last_error)::text), 0) + coalesce(octet_length(j.progress::text), 0) AS size
        FROM pulse.jobs j
        WHERE j.topic = l.topic AND j.priority = l.priority AND j.status IN ('PENDING', 'RETRYING')
          AND j.next_run_at >= l.from_at AND j.next_run_at <= coalesce($16, now())
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT c.at FROM clock c))
          AND CASE WHEN $15::uuid[] IS NULL THEN j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s)) ELSE j.id = ANY ($15) END
        ORDER BY j.next_run_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS p
    LIMIT $2)
    UNION ALL
    (SELECT p.id, p.next_run_at, p.size, c.priority + coalesce(extract(epoch FROM coalesce($16, now()) - p.next_run_at)::float8 / c.age_s, 0)
    FROM cut c
    CROSS JOIN LATERAL (
        SELECT q.id, q.next_run_at,
               CASE WHEN pg_column_size(q.args) > 2000 OR pg_column_compression(q.args) IS NOT NULL
                    THEN octet_length(q.args::text) ELSE 2000 END + coalesce(octet_length(q.checkpoint::text), 0)
               + coalesce(octet_length(to_json(q.last_error)::text), 0) + coalesce(octet_length(q.progress::text), 0) AS size
        FROM pulse.jobs q
        WHERE q.topic = c.topic AND q.priority = c.priority AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= c.from_at AND q.next_run_at <= c.until_at
          AND (q.expires_at IS NULL OR q.expires_at > (SELECT c.at FROM clock c))
          AND CASE WHEN $15::uuid[] IS NULL THEN q.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s)) ELSE q.id = ANY ($15) END
        ORDER BY q.next_run_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS p
    ORDER BY 4 DESC, c.place, p.next_run_at LIMIT $2)
), seated AS (
    SELECT id, row_number() OVER place AS seat, sum(size) OVER place - size AS before_bytes,
           CASE WHEN f.attempts_floor > 0 AND (id < f.first_id OR get_byte(uuid_send(id), 6) >> 4 <> 7
                                               OR id >= '04000000-0000-0000-0000-000000000000')
                THEN f.attempts_floor ELSE 0 END AS floor
    FROM fence f CROSS JOIN picked
    WINDOW place AS (ORDER BY rank DESC, next_run_at, id)
)
UPDATE pulse.jobs j
SET status = 'RUNNING', attempts = greatest(j.attempts, s.floor) + 1, uncharged = j.uncharged + greatest(s.floor - j.attempts, 0),
    locked_by = ($3::text[])[coalesce(($4::int[])[s.seat], 1)],
    started_at = (SELECT c.at FROM clock c), lease_until = coalesce($16, clock_timestamp()) + $5 * interval '1 second',
    progress = NULL
FROM seated s
WHERE j.id BETWEEN s.id AND s.id AND j.status::text IN ('PENDING', 'RETRYING') AND s.before_bytes < 8388608
RETURNING uuid_send(j.id) AS id, j.attempts, j.name, j.topic, j.args::text AS args, j.timeout_s, j.priority,
    date_part('epoch', j.next_run_at) AS due_at, coalesce(($4::int[])[s.seat], 1) - 1 AS worker, j.uncharged, j.crashes,
    date_part('epoch', j.occurrence) AS occurrence_at, j.checkpoint::text AS checkpoint,
    CASE WHEN j.attempts > 1 THEN (
        SELECT jsonb_build_array(a.outcome, a.error, a.worker, a.progress::text)::text
        FROM pulse.attempts a WHERE a.job_id = j.id AND a.attempt < j.attempts ORDER BY a.attempt DESC LIMIT 1) END AS previous,
    CASE WHEN octet_length(j.traceparent) <= 55 THEN j.traceparent END AS traceparent;


-- name: claimable_jobs :many
-- What:    which jobs a claim would look at, to find the one that it fails for: nothing is read of them that may be broken.
-- Args:    $1 topics text[] of a full claim, $2 limit int, $3 level topics text[], $4 level priorities smallint[], $5 from when
--          float8[] (all as for claim_jobs), $6 now
-- Guard:   none: reads.   Returns: id, topic, priority, due time (Unix), in the order in which they are served.
WITH RECURSIVE found AS (
    SELECT t.topic, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = t.topic AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM unnest($1::text[]) AS t(topic)
    UNION ALL
    SELECT l.topic, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.status IN ('PENDING', 'RETRYING')
        AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
    FROM found l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT f.topic, f.priority, '-infinity'::timestamptz AS from_at FROM found f WHERE f.priority IS NOT NULL
    UNION ALL
    SELECT k.topic, k.priority, coalesce(to_timestamp(k.from_s), coalesce($6, now()) - interval '5 seconds')
    FROM unnest($3::text[], $4::smallint[], $5::float8[]) AS k(topic, priority, from_s)
)
SELECT uuid_send(p.id) AS id, l.topic, l.priority, date_part('epoch', p.next_run_at) AS due_s
FROM levels l
CROSS JOIN LATERAL (
    SELECT j.id, j.next_run_at FROM pulse.jobs j
    WHERE j.topic = l.topic AND j.priority = l.priority AND j.status IN ('PENDING', 'RETRYING')
      AND j.next_run_at >= l.from_at AND j.next_run_at <= coalesce($6, now())
      AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
    ORDER BY j.next_run_at LIMIT $2) AS p
ORDER BY l.priority DESC, p.next_run_at LIMIT $2;


-- name: set_aside_jobs :many
-- What:    keep jobs that the database refuses from what others of them are done with.
-- Args:    $1 ids uuid[] (sorted), $2 SQLSTATEs text[], $3 statements text[], $4 errors text[] (same length), $5 pause_s float8
--          until each is tried by itself, $6 most int: none of them where so many are set aside (NULL: however many are)
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
-- What:    the job whose turn it is to be tried by itself; the others have theirs first from now on.
-- Args:    $1 pause_s float8 until its next turn
-- Guard:   SKIP LOCKED: of several servers one tries it.
-- Returns: id, status (NULL: it is gone), topic, priority, due time (Unix), whether it has expired: no claim takes it any more, the
--          statement that was refused, its SQLSTATE; or nothing.
WITH mine AS (
    SELECT s.job_id FROM pulse.set_aside s WHERE s.next_try_at <= clock_timestamp()
    ORDER BY s.next_try_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE pulse.set_aside s SET next_try_at = clock_timestamp() + $1 * interval '1 second', tries = s.tries + 1
FROM mine m LEFT JOIN pulse.jobs j ON j.id = m.job_id
WHERE s.job_id = m.job_id
RETURNING uuid_send(s.job_id) AS id, j.status::text AS status, j.topic, j.priority, date_part('epoch', j.next_run_at) AS due_s,
    j.expires_at <= clock_timestamp() AS expired, s.statement, s.sqlstate;


-- name: readmit_like :exec
-- What:    what was refused at its claim as one was that is not any more.   Args: $1 SQLSTATE text
-- Guard:   what an operator set aside stays so, and whose report is refused.   Returns: nothing.
DELETE FROM pulse.set_aside s WHERE s.sqlstate = $1 AND s.statement = 'claim_jobs' AND s.next_try_at <> 'infinity';


-- name: readmit_jobs :exec
-- What:    these are refused no more.   Args: $1 ids uuid[]
-- Guard:   what an operator set aside stays so.   Returns: nothing.
DELETE FROM pulse.set_aside s WHERE s.job_id = ANY ($1::uuid[]) AND s.next_try_at <> 'infinity';


-- name: find_levels :many
-- What:    the next levels (topic, priority) that have jobs which wait, by a loose index scan: two descents for each.
-- Args:    $1 topic, $2 priority smallint: behind which level to begin, $3 limit int, $4 now.   Guard: none: reads.
-- Returns: topic, priority, and of the first job when it is due (Unix seconds) and whether it is.
WITH RECURSIVE levels AS (
    SELECT $1::text AS topic, $2::smallint AS priority, NULL::timestamptz AS next_run_at, 0 AS place
    UNION ALL
    SELECT f.topic, f.priority, f.next_run_at, l.place + 1
    FROM levels l
    CROSS JOIN LATERAL (
        SELECT n.* FROM (
            (SELECT j.topic, j.priority, j.next_run_at FROM pulse.jobs j
             WHERE j.topic = l.topic AND j.priority < l.priority AND j.status IN ('PENDING', 'RETRYING')
             ORDER BY j.priority DESC, j.next_run_at LIMIT 1)
            UNION ALL
            (SELECT j.topic, j.priority, j.next_run_at FROM pulse.jobs j
             WHERE j.topic > l.topic AND j.status IN ('PENDING', 'RETRYING')
             ORDER BY j.topic, j.priority DESC, j.next_run_at LIMIT 1)
        ) AS n LIMIT 1
    ) AS f
    WHERE l.place < $3
)
SELECT topic, priority, date_part('epoch', next_run_at) AS due_at, next_run_at <= coalesce($4, now()) AS is_due
FROM levels WHERE place > 0 ORDER BY place;


-- name: move_claims :many
-- What:    pass claims that no handler has seen on to another worker of this dispatcher.   From/to: RUNNING -> RUNNING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 new workers text[] (same length, sorted by id)
-- Guard:   id, status, locked_by, attempts.   Returns: ids moved; a missing one was stale.
UPDATE pulse.jobs j SET locked_by = d.heir
FROM unnest($1::text::uuid[], $2::text::int[], $3::text[], $4::text[]) AS d(id, attempt, worker, heir)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id;


-- name: complete_jobs :exec
-- What:    close the attempts that their workers still own.   From/to: RUNNING -> COMPLETED
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 results text[], $5 progress text[] (JSON or NULL; same length,
--          sorted by id; the last two may be shorter: NULL), $6 now
-- Guard:   id, status, locked_by, attempts.   Returns: how many were closed; a missing one was stale: never repeat it.
--          Which they are is only asked (completed_at_attempt) when it is not all of them: to return each costs as much
--          as a tenth of the statement, here and in whoever reads it.
UPDATE pulse.jobs j
SET status = 'COMPLETED', completed_at = coalesce($6, clock_timestamp()), locked_by = NULL, lease_until = NULL,
    result = d.result::jsonb, progress = coalesce(d.progress::jsonb, j.progress)
FROM unnest($1::text::uuid[], $2::text::int[], $3::text[], $4::text[], $5::text[]) AS d(id, attempt, worker, result, progress)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt;


-- name: complete_and_forget :one
-- What:    the same where nothing is kept of a success: the job is deleted, with its history.
-- Args:    $1 ids text, $2 attempts text, $3 workers text[] (same length, sorted by id)
-- Guard:   id, status, locked_by, attempts.   Returns: how many were deleted; a missing one was stale: never repeat it.
--          A first attempt without any error has no history that were worth a look: one that expired, and was retried, says so.
WITH gone AS (
    DELETE FROM pulse.jobs j
    USING unnest($1::text::uuid[], $2::text::int[], $3::text[]) AS d(id, attempt, worker)
    WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
    RETURNING j.id, j.attempts, j.last_error
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE (g.attempts > 1 OR g.last_error IS NOT NULL) AND a.job_id BETWEEN g.id AND g.id
)
SELECT count(*) AS gone FROM gone;


-- name: forget_jobs :one
-- What:    delete, of a window of the primary key, the jobs that have ended long enough ago, with their history.
-- Args:    $1 from uuid, $2 window int, $3 keep_s float8 (completed, canceled), $4 keep_dead_s float8, for topics that have
--          none of their own, $5 now
-- Guard:   status and completed_at, in the DELETE itself: whoever retries a job first keeps it. The lock of a row that no other role
--          may lock (an advisory lock anybody may take who may connect): one at a time.
-- Returns: mine (false: somebody else is at it, and nothing was done), walked, gone, last: the last id of the window,
--          first_left: the first one that is still there (both NULL where there is none).
--          EXCEPT, not NOT IN: that compares each with all others (200 ms), since the planner takes them for too many to hash.
--          No index holds completed_at, which would cost each completion a tenth: the primary key is walked instead.
WITH mine AS MATERIALIZED (
    SELECT true AS mine FROM pulse.retention_mark FOR UPDATE SKIP LOCKED
), walked AS MATERIALIZED (
    SELECT j.id FROM pulse.jobs j WHERE j.id >= $1 AND EXISTS (SELECT FROM mine) ORDER BY j.id LIMIT $2
), gone AS (
    DELETE FROM pulse.jobs j USING walked w
    WHERE j.id BETWEEN w.id AND w.id AND j.status::text IN ('COMPLETED', 'CANCELED', 'DEAD_LETTERED')
      AND j.completed_at < coalesce($5, clock_timestamp())
                           - interval '1 second' * CASE
                               WHEN NOT EXISTS (SELECT FROM pulse.topics t WHERE t.retention_s IS NOT NULL OR t.retention_dead_s IS NOT NULL)
                               THEN CASE j.status WHEN 'DEAD_LETTERED' THEN $4::float8 ELSE $3::float8 END
                               WHEN j.status = 'DEAD_LETTERED'
                               THEN coalesce((SELECT t.retention_dead_s FROM pulse.topics t WHERE t.topic = j.topic), $4::float8)
                               ELSE coalesce((SELECT t.retention_s FROM pulse.topics t WHERE t.topic = j.topic), $3::float8) END
    RETURNING j.id
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE a.job_id BETWEEN g.id AND g.id
)
SELECT EXISTS (SELECT FROM mine) AS mine, (SELECT count(*) FROM walked) AS walked, (SELECT count(*) FROM gone) AS gone,
    (SELECT uuid_send(w.id) FROM walked w ORDER BY w.id DESC LIMIT 1) AS last,
    (SELECT uuid_send(l.id) FROM (SELECT w.id FROM walked w EXCEPT SELECT g.id FROM gone g) AS l ORDER BY l.id LIMIT 1) AS first_left;


-- name: completed_at_attempt :many
-- What:    which of these attempts are the very ones that completed their jobs: a report that was repeated.
-- Args:    $1 ids text, $2 attempts text
-- Guard:   none: reads.   Returns: id, attempt.
SELECT uuid_send(j.id) AS id, j.attempts FROM unnest($1::text::uuid[], $2::text::int[]) AS d(id, attempt)
JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id AND j.status::text = 'COMPLETED' AND j.attempts = d.attempt;


-- name: end_attempts :many
-- What:    end attempts in any way but success, through the one retry path, and write their history.
--          From/to: RUNNING -> RETRYING, DEAD_LETTERED, PENDING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 outcomes text[], $5 errors text[] (NULL: keep last_error),
--          $6 delay_s float8[] (NULL: the back-off), $7 exit codes int[], $8 progress text[] (JSON or NULL), $9 stacks text[],
--          $10 cpu_s float8[], $11 peak_rss_bytes bigint[] (same length, sorted by id), $12 now
-- Guard:   id, status, locked_by, attempts; and for outcome lease_expired a lease that has lapsed by the database's clock.
-- Returns: id, attempt, new status, topic, priority, seconds until due, when that is (Unix); a missing one was stale.
--          `silent` is written as lease_expired, but looks at no lease: its worker let it lapse, and was killed since.
--          Charged tries are attempts - uncharged. Uncharged: released, snoozed; unassigned, which no worker ever saw and
--          which leaves no history; crashed spends a budget of its own, whose
--          first retry is immediate. Without a charged try behind it, a job that was given back is PENDING again.
--          The back-off is the handler's, else the topic's, else the server's, else quadratic. Whether anybody has one is
--          looked up once for all rows, in two indexes that hold those only; without one, the strict function is not called.
WITH ended AS (
    SELECT d.id, d.attempt, d.worker, d.outcome, d.error, d.exit_code, d.progress, d.stack, d.cpu_s, d.peak_rss_bytes,
           coalesce($12, clock_timestamp()) AS at,
           d.outcome IN ('released', 'unassigned', 'snoozed', 'crashed') AS uncharged, d.outcome = 'crashed' AS crashed,
           coalesce(d.delay_s, CASE d.outcome WHEN 'released' THEN 0 WHEN 'unassigned' THEN 0 WHEN 'crashed' THEN j.crashes ^ 2
               ELSE coalesce(pulse.backoff_s(coalesce(
                        CASE WHEN EXISTS (SELECT FROM pulse.handlers h WHERE h.backoff IS NOT NULL)
                             THEN (SELECT h.backoff FROM pulse.handlers h WHERE h.name = j.name AND h.backoff IS NOT NULL) END,
                        CASE WHEN EXISTS (SELECT FROM pulse.topics t WHERE t.backoff IS NOT NULL)
                             THEN (SELECT t.backoff FROM pulse.topics t WHERE t.topic = j.topic AND t.backoff IS NOT NULL) END,
                        (SELECT t.backoff FROM pulse.topics t WHERE t.topic = '' AND t.backoff IS NOT NULL)), d.attempt - j.uncharged),
                    (d.attempt - j.uncharged) ^ 2) END) AS delay_s,
           CASE d.outcome
               WHEN 'discarded' THEN true
               WHEN 'released' THEN false
               WHEN 'unassigned' THEN false
               WHEN 'snoozed' THEN false
               WHEN 'crashed' THEN j.crashes + 1 >= coalesce(
                   (SELECT h.max_crashes FROM pulse.handlers h WHERE h.name = j.name),
                   (SELECT t.max_crashes FROM pulse.topics t WHERE t.topic = j.topic),
                   (SELECT t.max_crashes FROM pulse.topics t WHERE t.topic = ''))
               ELSE d.attempt - j.uncharged >= j.max_attempts
           END AS dead
    FROM unnest($1::text::uuid[], $2::text::int[], $3::text[], $4::text[], $5::text[], $6::float8[], $7::int[],
                $8::text[], $9::text[], $10::float8[], $11::bigint[])
        AS d(id, attempt, worker, outcome, error, delay_s, exit_code, progress, stack, cpu_s, peak_rss_bytes)
    JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id
), changed AS (
    UPDATE pulse.jobs j
    SET status = (CASE WHEN e.dead THEN 'DEAD_LETTERED'
                       WHEN e.uncharged AND NOT e.crashed AND e.attempt = j.uncharged + 1 THEN 'PENDING'
                       ELSE 'RETRYING' END)::pulse.job_status,
        next_run_at = CASE WHEN e.dead THEN j.next_run_at ELSE e.at + e.delay_s * interval '1 second' END,
        completed_at = CASE WHEN e.dead THEN e.at END,
        uncharged = j.uncharged + e.uncharged::int, crashes = j.crashes + e.crashed::int,
        last_error = coalesce(e.error, j.last_error), progress = coalesce(e.progress::jsonb, j.progress),
        locked_by = NULL, lease_until = NULL
    FROM ended e
    WHERE j.id BETWEEN e.id AND e.id AND j.status::text = 'RUNNING' AND j.locked_by = e.worker AND j.attempts = e.attempt
      AND (e.outcome <> 'lease_expired' OR j.lease_until < e.at)
    RETURNING j.id, j.attempts, j.status, j.topic, j.priority, j.next_run_at, j.started_at, j.progress, e.worker, e.outcome, e.error,
              e.exit_code, e.at, e.delay_s, e.stack, e.cpu_s, e.peak_rss_bytes
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, error, exit_code, progress, stack,
                                cpu_s, peak_rss_bytes)
    SELECT id, attempts, worker, started_at, at, CASE outcome WHEN 'silent' THEN 'lease_expired' ELSE outcome END, error,
           exit_code, progress, stack, cpu_s, peak_rss_bytes
    FROM changed
    WHERE outcome <> 'unassigned'
    ON CONFLICT (job_id, attempt) DO NOTHING
)
SELECT uuid_send(id) AS id, attempts, status::text AS status, topic, priority, delay_s, date_part('epoch', next_run_at) AS due_s FROM changed;


-- name: lockable_jobs :many
-- What:    which of these rows nobody else holds a lock on now; asked when a merged statement had to wait for too long.
-- Args:    $1 ids uuid[] (sorted)
-- Guard:   none: SKIP LOCKED, and the locks are let go at once.   Returns: ids; a row that is gone counts as lockable.
SELECT uuid_send(d.id) AS id FROM unnest($1::uuid[]) AS d(id)
WHERE NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.id = d.id)
   OR EXISTS (SELECT FROM pulse.jobs j WHERE j.id = d.id FOR UPDATE SKIP LOCKED);


-- name: extend_leases :many
-- What:    a heartbeat: extend exactly these leases and keep their progress.   From/to: RUNNING -> RUNNING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 progress text[] (JSON or NULL; same length, sorted by id),
--          $5 lease_s float8, $6 now
-- Guard:   id, status, locked_by, attempts.   Returns: id, attempt extended; a missing one is lost to its worker.
--          No index holds these columns, so the update is HOT. A topic whose own lease is longer gets that.
UPDATE pulse.jobs j
SET lease_until = coalesce($6, clock_timestamp()) + interval '1 second' * CASE
        WHEN EXISTS (SELECT FROM pulse.topics t WHERE t.lease_s IS NOT NULL)
        THEN greatest($5, (SELECT t.lease_s FROM pulse.topics t WHERE t.topic = j.topic AND t.lease_s IS NOT NULL)) ELSE $5 END,
    progress = coalesce(d.progress::jsonb, j.progress)
FROM unnest($1::text::uuid[], $2::text::int[], $3::text[], $4::text[]) AS d(id, attempt, worker, progress)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id, j.attempts;


-- name: save_checkpoints :many
-- What:    keep what handlers saved for the next attempt.   From/to: RUNNING -> RUNNING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 checkpoints text[] (JSON; same length, sorted by id)
-- Guard:   id, status, locked_by, attempts.   Returns: id, attempt saved; a missing one is lost to its worker.
UPDATE pulse.jobs j SET checkpoint = d.checkpoint::jsonb
FROM unnest($1::text::uuid[], $2::text::int[], $3::text[], $4::text[]) AS d(id, attempt, worker, checkpoint)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id, j.attempts;


-- name: doubt_leases :exec
-- What:    heartbeats were heard that cannot be written: nobody may reap for a while.   Args: $1 wait_s float8, $2 now.
-- Guard:   a wait is never made shorter.   Returns: nothing.
UPDATE pulse.sweep_mark m SET wait_until = GREATEST(m.wait_until, coalesce($2, clock_timestamp()) + $1 * interval '1 second');


-- name: lapsed_attempts :many
-- What:    RUNNING jobs whose lease has lapsed: what the watchdog ends as lease_expired.
-- Args:    $1 limit int, $2 workers text[] that are looked after otherwise, $3 now
-- Guard:   none: reads; end_attempts looks at the lease again.   Returns: id, attempt, worker, sorted by id.
SELECT uuid_send(l.id) AS id, l.attempts, l.locked_by FROM (
    SELECT j.id, j.attempts, j.locked_by FROM pulse.jobs j
    WHERE j.status = 'RUNNING' AND j.lease_until < coalesce($3, clock_timestamp()) AND j.locked_by <> ALL ($2::text[])
    ORDER BY j.started_at LIMIT $1) AS l
ORDER BY l.id;


-- name: running_of_worker :many
-- What:    what the database believes that this worker holds; asked at its hello.
-- Args:    $1 worker text
-- Guard:   none: reads.   Returns: id, attempt, name, topic, timeout_s; texts as bytes, which are told even where they are no text.
SELECT uuid_send(j.id) AS id, j.attempts, textsend(j.name) AS name, textsend(j.topic) AS topic, j.timeout_s
FROM pulse.jobs j WHERE j.status = 'RUNNING' AND j.locked_by = $1;


-- name: leases_of_workers :many
-- What:    the same of several workers, and how long each lease still runs: whoever beats for them moves that.
-- Args:    $1 workers text[], $2 now
-- Guard:   none: reads.   Returns: worker, id, attempt, name, topic (bytes, as above), timeout_s, left_s.
SELECT j.locked_by AS worker, uuid_send(j.id) AS id, j.attempts, textsend(j.name) AS name, textsend(j.topic) AS topic, j.timeout_s,
    extract(epoch FROM j.lease_until - coalesce($2, clock_timestamp()))::float8 AS left_s
FROM pulse.jobs j WHERE j.status = 'RUNNING' AND j.locked_by = ANY ($1::text[]);


-- name: jobs_named :many
-- What:    what these jobs are, whatever became of them: a worker holds attempts of theirs that are over.
-- Args:    $1 ids uuid[]
-- Guard:   none: reads.   Returns: id, name, topic (bytes, as above), timeout_s.
SELECT uuid_send(j.id) AS id, textsend(j.name) AS name, textsend(j.topic) AS topic, j.timeout_s FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: running_workers :many
-- What:    every worker that holds a lease.   Args: none.   Guard: none: reads.   Returns: worker.
SELECT DISTINCT j.locked_by AS worker FROM pulse.jobs j WHERE j.status = 'RUNNING';


-- name: cancel_jobs :many
-- What:    cancel, whatever the job is doing.   From/to: PENDING, RETRYING, RUNNING -> CANCELED
-- Args:    $1 ids uuid[], $2 now
-- Guard:   status, locked in id order first and tested again in the UPDATE.   Returns: id, and attempt and worker where it was RUNNING.
WITH target AS (
    SELECT j.id, j.status, j.attempts, j.locked_by, j.started_at, j.progress FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    ORDER BY j.id FOR UPDATE
), changed AS (
    UPDATE pulse.jobs j
    SET status = 'CANCELED', completed_at = coalesce($2, clock_timestamp()), locked_by = NULL, lease_until = NULL
    FROM target t WHERE j.id = t.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    RETURNING j.id, j.completed_at
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, progress)
    SELECT t.id, t.attempts, t.locked_by, t.started_at, c.completed_at, 'canceled', t.progress
    FROM target t JOIN changed c ON c.id = t.id WHERE t.status = 'RUNNING'
    ON CONFLICT (job_id, attempt) DO NOTHING
)
SELECT uuid_send(t.id) AS id, t.attempts, t.locked_by FROM target t JOIN changed c ON c.id = t.id;


-- name: expire_jobs :one
-- What:    dead-letter jobs that were not started in time.   From/to: PENDING, RETRYING -> DEAD_LETTERED
-- Args:    $1 limit int, $2 now
-- Guard:   status and expires_at, not set aside, under SKIP LOCKED (what is being claimed or canceled now is looked at again a second later),
--          and status again in the UPDATE.
-- Returns: how many. Their history gets an attempt 0: none was made.
--          The partial index holds only jobs that may expire, so all others cost nothing.
WITH late AS (
    SELECT j.id FROM pulse.jobs j
    WHERE j.status IN ('PENDING', 'RETRYING') AND j.expires_at <= coalesce($2, now())
      AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
    ORDER BY j.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE pulse.jobs j
    SET status = 'DEAD_LETTERED', completed_at = coalesce($2, clock_timestamp()),
        last_error = format('expired: not started by %sZ', to_char(j.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS'))
                     || coalesce(E'\nthe last error was: ' || left(j.last_error, 60000), '')
    FROM late l WHERE j.id BETWEEN l.id AND l.id AND j.status::text IN ('PENDING', 'RETRYING')
    RETURNING j.id, j.completed_at, j.last_error, j.progress
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, ended_at, outcome, error, progress)
    SELECT c.id, 0, c.completed_at, 'expired', c.last_error, c.progress FROM changed c
    ON CONFLICT (job_id, attempt) DO UPDATE SET ended_at = excluded.ended_at, error = excluded.error, progress = excluded.progress
)
SELECT count(*) AS expired FROM changed;


-- name: first_late_job :one
-- What:    the job that expire_jobs would end first.   Args: $1 now.   Guard: none: reads.   Returns: id, or nothing.
SELECT uuid_send(j.id) AS id FROM pulse.jobs j
WHERE j.status IN ('PENDING', 'RETRYING') AND j.expires_at <= coalesce($1, now()) AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
ORDER BY j.expires_at LIMIT 1;


-- name: first_job_from :one
-- What:    the first job in the order of ids.   Args: $1 from uuid.   Guard: none: reads.   Returns: id, or nothing.
SELECT uuid_send(j.id) AS id FROM pulse.jobs j WHERE j.id >= $1 ORDER BY j.id LIMIT 1;


-- name: retry_jobs :many
-- What:    an operator's retry, with fresh budgets; attempts goes on, so the fence has no hole. An expiry that is over is
--          dropped: who retries wants it started.
--          From/to: COMPLETED, DEAD_LETTERED, CANCELED -> PENDING
-- Args:    $1 ids uuid[], $2 now
-- Guard:   status, locked in id order first and tested again in the UPDATE.   Returns: id, topic, priority, due time (Unix).
WITH target AS (
    SELECT j.id FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
    ORDER BY j.id FOR UPDATE
)
UPDATE pulse.jobs j
SET status = 'PENDING', uncharged = j.attempts, crashes = 0, next_run_at = coalesce($2, clock_timestamp()), completed_at = NULL,
    result = NULL, progress = NULL, checkpoint = NULL,
    expires_at = CASE WHEN j.expires_at > coalesce($2, clock_timestamp()) THEN j.expires_at END
FROM target t WHERE j.id = t.id AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
RETURNING uuid_send(j.id) AS id, j.topic, j.priority, date_part('epoch', j.next_run_at) AS due_s;


-- name: delete_jobs :many
-- What:    remove jobs that have ended, with their history, for an operator.
-- Args:    $1 ids uuid[]
-- Guard:   status, locked in id order first and tested again in the DELETE: whoever retries a job first keeps it.   Returns: ids that are gone.
WITH target AS (
    SELECT j.id FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
    ORDER BY j.id FOR UPDATE
), gone AS (
    DELETE FROM pulse.jobs j USING target t WHERE j.id = t.id AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
    RETURNING j.id
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE a.job_id = g.id
)
SELECT uuid_send(g.id) AS id FROM gone g;


-- name: delete_set_aside :many
-- What:    the same of jobs that are set aside, whatever their status: no other statement can change them.
-- Args:    $1 ids uuid[]
-- Guard:   that they are set aside; locked in id order.   Returns: ids that are gone. Nothing long is read: it may be what cannot be.
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


-- name: change_jobs :many
-- What:    move jobs that wait to another topic or priority. What is due is due from now on: so it lies ahead of the cursors with
--          which all dispatchers claim there. What is due later, or is held back, stays so; what is there already is left alone.
-- Args:    $1 ids uuid[], $2 topic or NULL, $3 priority smallint or NULL (each NULL: it stays), $4 now
-- Guard:   status, locked in id order first and tested again in the UPDATE: whoever claims or cancels a job first has it.
-- Returns: id, the topic and priority before; and of those that were moved the new ones, and when they are due (Unix seconds).
WITH target AS (
    SELECT j.id, j.topic, j.priority FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('PENDING', 'RETRYING')
    ORDER BY j.id FOR UPDATE
), changed AS (
    UPDATE pulse.jobs j
    SET topic = coalesce($2, j.topic), priority = coalesce($3, j.priority),
        next_run_at = CASE WHEN j.next_run_at <= coalesce($4, clock_timestamp()) THEN coalesce($4, clock_timestamp()) ELSE j.next_run_at END
    FROM target t
    WHERE j.id = t.id AND j.status::text IN ('PENDING', 'RETRYING')
      AND (j.topic, j.priority) IS DISTINCT FROM (coalesce($2, j.topic), coalesce($3, j.priority))
    RETURNING j.id, j.topic, j.priority, j.next_run_at
)
SELECT uuid_send(t.id) AS id, t.topic AS old_topic, t.priority AS old_priority, c.topic, c.priority, date_part('epoch', c.next_run_at) AS due_s
FROM target t LEFT JOIN changed c ON c.id = t.id ORDER BY t.id;


-- name: set_aside_for_good :many
-- What:    leave a job out of claims that the database refused to change for an operator, until it is deleted.
-- Args:    $1 id uuid, $2 SQLSTATE, $3 statement, $4 error.   Guard: the job is there.   Returns: id.
INSERT INTO pulse.set_aside AS s (job_id, next_try_at, sqlstate, statement, error)
SELECT j.id, 'infinity', $2, $3, $4 FROM pulse.jobs j WHERE j.id = $1
ON CONFLICT (job_id) DO UPDATE SET next_try_at = 'infinity', tries = s.tries + 1, sqlstate = excluded.sqlstate,
    statement = excluded.statement, error = excluded.error
RETURNING uuid_send(s.job_id) AS id;


-- name: lift_jobs :exec
-- What:    these jobs are set aside no more, also where an operator did it.   Args: $1 ids uuid[]
-- Guard:   the primary key.   Returns: nothing.
DELETE FROM pulse.set_aside s WHERE s.job_id = ANY ($1::uuid[]);


-- name: job_statuses :many
-- What:    status of each of these jobs, to say why one was refused.   Args: $1 ids uuid[].   Guard: none: reads.   Returns: id, status, attempts.
SELECT uuid_send(j.id) AS id, j.status::text AS status, j.attempts FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: last_workers :many
-- What:    who had, or has, the last attempt of each of these jobs that was canceled or still runs: it may be running it yet.
-- Args:    $1 ids uuid[].   Guard: none: reads.   Returns: id, worker.
SELECT uuid_send(j.id) AS id, coalesce(j.locked_by, a.worker) AS worker
FROM pulse.jobs j
LEFT JOIN pulse.attempts a ON a.job_id = j.id AND a.attempt = j.attempts AND a.outcome = 'canceled'
WHERE j.id = ANY ($1::uuid[]) AND coalesce(j.locked_by, a.worker) IS NOT NULL;


-- name: get_job :one
-- What:    one job, all its columns, and its attempts that did not simply succeed, oldest first, in one snapshot.
-- Args:    $1 id uuid.   Guard: none: reads.
-- Returns: the row, its history as an array of rows without names (those are in reads.py), or nothing.
SELECT uuid_send(j.id) AS id, j.topic, j.name, j.args::text AS args, j.status::text AS status, j.priority, j.attempts, j.uncharged,
    j.max_attempts, j.crashes, j.submitted_at, j.next_run_at, j.started_at, j.completed_at, j.occurrence, j.expires_at, j.timeout_s, j.locked_by,
    j.lease_until, j.progress::text AS progress, j.result::text AS result, j.last_error, uuid_send(j.schedule_id) AS schedule_id,
    ARRAY(
        SELECT ROW(uuid_send(a.job_id), a.attempt, a.worker, a.started_at, a.ended_at, a.outcome, a.error, a.exit_code,
            a.progress::text, a.cpu_s, a.peak_rss_bytes, a.stack)
        FROM pulse.attempts a WHERE a.job_id = j.id ORDER BY a.ended_at, a.attempt
    ) AS history
FROM pulse.jobs j WHERE j.id = $1;


-- name: job_text :one
-- What:    one of those columns of a job that may be long: the others are not read, whatever is wrong with them.
-- Args:    $1 id uuid, $2 which.   Guard: none: reads.   Returns: the text.
SELECT CASE $2::text WHEN 'args' THEN j.args::text WHEN 'progress' THEN j.progress::text WHEN 'result' THEN j.result::text
                     WHEN 'last_error' THEN j.last_error END AS text
FROM pulse.jobs j WHERE j.id = $1;


-- name: job_history :many
-- What:    the history of get_job by itself.   Args: $1 id uuid.   Guard: none: reads.   Returns: its rows, oldest first.
SELECT uuid_send(a.job_id) AS job_id, a.attempt, a.worker, a.started_at, a.ended_at, a.outcome, a.error, a.exit_code,
    a.progress::text AS progress, a.cpu_s, a.peak_rss_bytes, a.stack
FROM pulse.attempts a WHERE a.job_id = $1 ORDER BY a.ended_at, a.attempt;


-- name: why_job :one
-- What:    what the database knows of why a job does not run, in one snapshot.
-- Args:    $1 id uuid, $2 limit int (most jobs to count), $3 the asking server's host, $4 now
-- Guard:   none: reads. Of those before it, as many as the limit are counted: levels by two descents each, jobs by a range of the
--          claim index from its start, so that a million that wait cost no more than a thousand.
-- Returns: the job, without args and result; whether it is set aside; its newest attempt, where it left a row; what pauses it; the schedule's
--          last job where this one is held back; what is known of its handler and of the hosts; how many of its topic that are due
--          come before it: of a higher priority, or due earlier at the same one. Or nothing.
WITH RECURSIVE job AS MATERIALIZED (
    SELECT j.id, j.topic, j.name, j.status::text AS status, j.priority, j.attempts, j.uncharged, j.max_attempts, j.crashes, j.submitted_at,
           j.next_run_at, j.started_at, j.completed_at, j.expires_at, j.lease_until, j.occurrence, j.locked_by, j.schedule_id,
           left(j.last_error, 500) AS last_error, coalesce($4, clock_timestamp()) AS now,
           j.status = 'PENDING' AND j.schedule_id IS NOT NULL AND j.next_run_at = '9999-12-30 00:00+00' AS held
    FROM pulse.jobs j WHERE j.id = $1
), levels AS (
    SELECT b.topic, (
        SELECT q.priority FROM pulse.jobs q WHERE q.topic = b.topic AND q.status IN ('PENDING', 'RETRYING')
        ORDER BY q.priority DESC LIMIT 1) AS priority
    FROM job b WHERE b.status IN ('PENDING', 'RETRYING') AND b.next_run_at <= b.now
    UNION ALL
    SELECT l.topic, (
        SELECT q.priority FROM pulse.jobs q WHERE q.topic = l.topic AND q.status IN ('PENDING', 'RETRYING')
        AND q.priority < l.priority ORDER BY q.priority DESC LIMIT 1)
    FROM levels l WHERE l.priority > (SELECT b.priority FROM job b)
)
SELECT uuid_send(b.id) AS id, b.topic, b.name, b.status, b.priority, b.attempts, b.uncharged, b.max_attempts, b.crashes, b.submitted_at,
    b.next_run_at, b.started_at, b.completed_at, b.expires_at, b.lease_until, b.locked_by, b.last_error, b.now, b.held,
    a.outcome, left(a.error, 500) AS attempt_error, a.ended_at, a.worker,
    e.paused_at AS all_paused_at, e.paused_by AS all_paused_by, e.paused_until AS all_paused_until, e.reason AS all_reason,
    t.paused_at, t.paused_by, t.paused_until, t.reason,
    uuid_send(l.id) AS last_job_id, l.status::text AS last_job_status,
    (SELECT count(*) FROM (
        SELECT FROM pulse.jobs q WHERE b.held AND q.schedule_id = b.schedule_id AND q.status = 'PENDING'
        AND q.next_run_at = '9999-12-30 00:00+00' AND q.occurrence < b.occurrence LIMIT $2) AS o) AS held_before,
    h.topic AS handler_topic, h.seen_at AS handler_seen_at,
    x.since AS aside_since, x.next_try_at = 'infinity' AS aside_for_good, x.sqlstate AS aside_sqlstate, x.statement AS aside_statement,
    left(x.error, 500) AS aside_error,
    (SELECT max(o.seen_at) FROM pulse.hosts o
     WHERE o.host = split_part(coalesce(b.locked_by, a.worker), '/', 1)
       AND o.boot = split_part(coalesce(b.locked_by, a.worker), '/', 2)) AS host_seen_at,
    (SELECT count(DISTINCT o.host) FROM pulse.hosts o WHERE o.host <> $3 AND o.seen_at > b.now - interval '1 minute') AS other_hosts,
    (SELECT count(*) FROM (
        SELECT FROM levels v CROSS JOIN LATERAL (
            SELECT FROM pulse.jobs q
            WHERE q.topic = v.topic AND q.priority = v.priority AND q.status IN ('PENDING', 'RETRYING')
              AND q.next_run_at <= CASE WHEN v.priority = b.priority THEN b.next_run_at - interval '1 microsecond' ELSE b.now END
            ORDER BY q.next_run_at LIMIT $2) AS f
        LIMIT $2) AS o) AS before
FROM job b
LEFT JOIN pulse.attempts a ON a.job_id = b.id AND a.attempt = b.attempts AND b.attempts > 0
LEFT JOIN pulse.dispatch_control e ON e.topic = '' AND coalesce(e.paused_until > b.now, true)
LEFT JOIN pulse.dispatch_control t ON t.topic = b.topic AND coalesce(t.paused_until > b.now, true)
LEFT JOIN pulse.schedules s ON s.id = b.schedule_id AND b.held
LEFT JOIN pulse.jobs l ON l.id = s.last_job_id
LEFT JOIN pulse.handlers h ON h.name = b.name
LEFT JOIN pulse.set_aside x ON x.job_id = b.id;


-- name: list_limits :one
-- What:    how the statements of a list are planned: by the indexes that have their order, whatever the statistics say.
-- Args:    none.   Guard: none: this transaction only.   Returns: now.
SELECT clock_timestamp() AS now, set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);


-- name: walk_jobs :many
-- What:    of a window of the table, in the order in which jobs are listed, those that are looked for.
-- Args:    $1 through what: ids (timed ones), others (all other ids), dead, canceled (timed ones of that status), $2 oldest boolean,
--          $3 from id, $4 to id (of all but others), $5 from submitted_at, $6 from id, $7 to submitted_at, $8 to id (of others; each
--          range is without its end), $9 window int: most rows to look at, $10 limit int: most to find,
--          $11 statuses text[], $12 topic, $13 name, $14 schedule uuid, $15 error (a pattern of ILIKE), $16 worker (likewise),
--          $17 first id, $18 last id (each NULL: any)
-- Guard:   none: reads.
-- Returns: id and submitted_at of those found, in order, and of the last of a whole window, found or not. One-time filters
--          leave one branch: each walks one index, as far as the window, or until enough is found.
SELECT uuid_send(w.id) AS id, w.submitted_at, w.is_wanted, w.place FROM (
    SELECT j.id, j.submitted_at, row_number() OVER () AS place,
       (j.status = ANY ($11::text[]::pulse.job_status[]) OR $11::text[] IS NULL)
       AND ($12::text IS NULL OR j.topic = $12) AND ($13::text IS NULL OR j.name = $13) AND ($14::uuid IS NULL OR j.schedule_id = $14)
       AND ($15::text IS NULL OR j.last_error ILIKE $15) AND ($16::text IS NULL OR j.locked_by ILIKE $16)
       AND ($17::uuid IS NULL OR j.id BETWEEN $17 AND $18)
       AND ($1 = 'others' OR get_byte(uuid_send(j.id), 6) >> 4 = 7) AS is_wanted
    FROM (
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'ids' AND NOT $2 AND j.id >= $3 AND j.id < $4
         ORDER BY j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'ids' AND $2 AND j.id >= $3 AND j.id < $4
         ORDER BY j.id LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'dead' AND NOT $2 AND j.status = 'DEAD_LETTERED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'dead' AND $2 AND j.status = 'DEAD_LETTERED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'canceled' AND NOT $2 AND j.status = 'CANCELED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'canceled' AND $2 AND j.status = 'CANCELED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'others' AND NOT $2 AND (get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')
           AND (j.submitted_at, j.id) >= ($5, $6) AND (j.submitted_at, j.id) < ($7, $8)
         ORDER BY j.submitted_at DESC, j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'others' AND $2 AND (get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')
           AND (j.submitted_at, j.id) >= ($5, $6) AND (j.submitted_at, j.id) < ($7, $8)
         ORDER BY j.submitted_at, j.id LIMIT $9)
    ) AS j
) AS w
WHERE coalesce(w.is_wanted, false) OR w.place = $9 LIMIT $10;


-- name: collect_jobs :one
-- What:    those that are looked for, of a part of the table that an index knows and that is small.
-- Args:    $1 which part: running, waiting (of $4, if that is given), dead, canceled, schedule, prefix, $2 window int: most rows to look at,
--          $3 statuses text[], $4 topic, $5 name, $6 schedule uuid, $7 error, $8 worker, $9 first id, $10 last id (as in walk_jobs)
-- Guard:   none: reads.
-- Returns: how many rows were looked at, and those found, in no order, as the bytes of ids behind each other: of the timed ones;
--          of the others each with submitted_at in microseconds. A row for each would take longer than all the rest.
SELECT count(*) AS walked, string_agg(w.id, ''::bytea) FILTER (WHERE w.is_wanted AND w.is_timed) AS timed,
    string_agg(w.id || int8send((extract(epoch FROM w.submitted_at) * 1000000)::bigint), ''::bytea)
        FILTER (WHERE w.is_wanted AND NOT w.is_timed) AS others
FROM (
    SELECT uuid_send(j.id) AS id, j.submitted_at,
       get_byte(uuid_send(j.id), 6) >> 4 = 7 AND j.id < '04000000-0000-0000-0000-000000000000' AS is_timed,
       (j.status = ANY ($3::text[]::pulse.job_status[]) OR $3::text[] IS NULL)
       AND ($4::text IS NULL OR j.topic = $4) AND ($5::text IS NULL OR j.name = $5) AND ($6::uuid IS NULL OR j.schedule_id = $6)
       AND ($7::text IS NULL OR j.last_error ILIKE $7) AND ($8::text IS NULL OR j.locked_by ILIKE $8)
       AND ($9::uuid IS NULL OR j.id BETWEEN $9 AND $10) AS is_wanted
    FROM (
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'running' AND j.status = 'RUNNING' LIMIT $2)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'waiting' AND $4::text IS NULL AND j.status IN ('PENDING', 'RETRYING') LIMIT $2)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'waiting' AND j.topic = $4 AND j.status IN ('PENDING', 'RETRYING') LIMIT $2)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'dead' AND j.status = 'DEAD_LETTERED' LIMIT $2)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'canceled' AND j.status = 'CANCELED' LIMIT $2)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'schedule' AND j.schedule_id = $6 LIMIT $2)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by
         FROM pulse.jobs j WHERE $1 = 'prefix' AND j.id BETWEEN $9 AND $10 LIMIT $2)
    ) AS j
) AS w;


-- name: jobs_by_ids :many
-- What:    all columns of these jobs.   Args: $1 ids uuid[].   Guard: none: reads.   Returns: the rows, in no order.
SELECT uuid_send(j.id) AS id, j.topic, j.name, j.args::text AS args, j.status::text AS status, j.priority, j.attempts, j.uncharged,
    j.max_attempts, j.crashes, j.submitted_at, j.next_run_at, j.started_at, j.completed_at, j.occurrence, j.expires_at, j.timeout_s, j.locked_by,
    j.lease_until, j.progress::text AS progress, j.result::text AS result, j.last_error, uuid_send(j.schedule_id) AS schedule_id
FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: jobs_in_brief :many
-- What:    the same without what may be long.   Args: $1 ids uuid[].   Guard: none: reads.   Returns: the rows, in no order.
SELECT uuid_send(j.id) AS id, j.topic, j.name, j.status::text AS status, j.priority, j.attempts, j.uncharged,
    j.max_attempts, j.crashes, j.submitted_at, j.next_run_at, j.started_at, j.completed_at, j.occurrence, j.expires_at, j.timeout_s, j.locked_by,
    j.lease_until, uuid_send(j.schedule_id) AS schedule_id
FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: count_jobs :many
-- What:    jobs per status among at most so many rows: exact where the table has no more.
-- Args:    $1 limit bigint.   Guard: none: reads.   Returns: status, count.
SELECT j.status::text AS status, count(*) AS count FROM (SELECT status FROM pulse.jobs LIMIT $1) AS j GROUP BY j.status;


-- name: estimate_jobs :many
-- What:    jobs per status in a large table: exact for those that may still run (by their partial indexes), estimated from
--          the statistics for the terminal ones.
-- Args: none.   Guard: none: reads.   Returns: status, count.
SELECT j.status::text AS status, count(*) AS count FROM pulse.jobs j WHERE j.status IN ('PENDING', 'RETRYING') GROUP BY j.status
UNION ALL
SELECT 'RUNNING', count(*) FROM pulse.jobs j WHERE j.status = 'RUNNING'
UNION ALL
SELECT v.status, (v.share * c.reltuples)::bigint
FROM pg_class c, pg_stats p, unnest(p.most_common_vals::text::text[], p.most_common_freqs) AS v(status, share)
WHERE c.oid = 'pulse.jobs'::regclass AND p.schemaname = 'pulse' AND p.tablename = 'jobs' AND p.attname = 'status'
  AND v.status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED');


-- name: guess_jobs :many
-- What:    jobs per status, all of them estimated from the statistics.   Args: none.   Guard: none: reads.   Returns: status, count.
SELECT v.status, (v.share * greatest(c.reltuples, 0))::bigint AS count
FROM pg_class c, pg_stats p, unnest(p.most_common_vals::text::text[], p.most_common_freqs) AS v(status, share)
WHERE c.oid = 'pulse.jobs'::regclass AND p.schemaname = 'pulse' AND p.tablename = 'jobs' AND p.attname = 'status';


-- name: count_waiting :many
-- What:    jobs that wait, and that run, by topic: exact where no more of them do than are looked at.
-- Args:    $1 rows bigint: how many of each are looked at, $2 topics int: how many are told by themselves, $3 now
-- Guard:   none: reads.   Returns: topic (NULL: all others together), topics: how many that are, ready, scheduled, running,
--          oldest_s: since when the first that is ready is due, NULL: none is; now_s, Unix. One row at least.
WITH clock AS MATERIALIZED (SELECT coalesce($3, clock_timestamp()) AS at), waiting AS MATERIALIZED (
    SELECT j.topic, j.next_run_at FROM pulse.jobs j WHERE j.status IN ('PENDING', 'RETRYING') LIMIT $1
), running AS MATERIALIZED (
    SELECT j.topic FROM pulse.jobs j WHERE j.status = 'RUNNING' LIMIT $1
), counted AS (
    SELECT w.topic, count(*) FILTER (WHERE w.next_run_at <= c.at) AS ready, count(*) FILTER (WHERE w.next_run_at > c.at) AS scheduled,
           0 AS running, min(w.next_run_at) FILTER (WHERE w.next_run_at <= c.at) AS oldest
    FROM waiting w, clock c GROUP BY w.topic
    UNION ALL
    SELECT r.topic, 0, 0, count(*), NULL FROM running r GROUP BY r.topic
), ranked AS (
    SELECT p.topic, sum(p.ready) AS ready, sum(p.scheduled) AS scheduled, sum(p.running) AS running, min(p.oldest) AS oldest,
           row_number() OVER (ORDER BY sum(p.ready) + sum(p.running) DESC, sum(p.scheduled) DESC, p.topic) <= $2 AS is_large
    FROM counted p GROUP BY p.topic
)
SELECT CASE WHEN r.is_large THEN r.topic END AS topic, count(r.topic)::int AS topics, coalesce(sum(r.ready), 0)::bigint AS ready,
    coalesce(sum(r.scheduled), 0)::bigint AS scheduled, coalesce(sum(r.running), 0)::bigint AS running,
    extract(epoch FROM c.at - min(r.oldest))::float8 AS oldest_s, extract(epoch FROM c.at)::float8 AS now_s
FROM clock c LEFT JOIN ranked r ON true GROUP BY 1, c.at;


-- name: sample_waiting :many
-- What:    jobs that wait by topic, where too many do to be counted: estimated from some pages of the table, always the same
--          ones; each of the largest topics, and of those that are named, is counted up to so many, and how long its first one
--          waits is looked up, by its levels.
-- Args:    $1 pages float8, $2 topics int: how many are told by themselves, $3 names text[], $4 rows bigint: that are counted of each,
--          $5 now
-- Guard:   none: reads.   Returns: as above, without running.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($5, clock_timestamp()) AS at,
           greatest(1, pg_relation_size('pulse.jobs') / (current_setting('block_size')::float8 * $1)) AS each
), seen AS MATERIALIZED (
    SELECT j.topic, j.next_run_at
    FROM pulse.jobs j TABLESAMPLE SYSTEM (least(100, 100 * current_setting('block_size')::float8 * $1
                                                     / greatest(pg_relation_size('pulse.jobs'), 1))) REPEATABLE (1)
    WHERE j.status IN ('PENDING', 'RETRYING')
), guessed AS (
    SELECT s.topic, count(*) FILTER (WHERE s.next_run_at <= c.at) * c.each AS ready,
           count(*) FILTER (WHERE s.next_run_at > c.at) * c.each AS scheduled
    FROM seen s, clock c GROUP BY s.topic, c.each
), large AS (
    (SELECT g.topic FROM guessed g ORDER BY g.ready DESC, g.scheduled DESC, g.topic LIMIT $2)
    UNION
    SELECT n.topic FROM unnest($3::text[]) AS n(topic)
), looked AS (
    SELECT l.topic, p.ready, p.scheduled, p.ready + p.scheduled < $4 AS is_exact
    FROM large l CROSS JOIN clock c CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE q.next_run_at <= c.at) AS ready, count(*) FILTER (WHERE q.next_run_at > c.at) AS scheduled
        FROM (SELECT j.next_run_at FROM pulse.jobs j WHERE j.topic = l.topic AND j.status IN ('PENDING', 'RETRYING') LIMIT $4) AS q) AS p
), levels AS (
    SELECT l.topic, 101::smallint AS priority, NULL::timestamptz AS next_run_at FROM large l
    UNION ALL
    SELECT v.topic, f.priority, f.next_run_at
    FROM levels v CROSS JOIN LATERAL (
        SELECT j.priority, j.next_run_at FROM pulse.jobs j
        WHERE j.topic = v.topic AND j.priority < v.priority AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC, j.next_run_at LIMIT 1) AS f
), told AS (
    SELECT k.topic, true AS is_large, CASE WHEN k.is_exact THEN k.ready ELSE greatest(k.ready, g.ready) END AS ready,
           CASE WHEN k.is_exact THEN k.scheduled ELSE greatest(k.scheduled, g.scheduled) END AS scheduled,
           (SELECT min(v.next_run_at) FROM levels v WHERE v.topic = k.topic AND v.next_run_at <= c.at) AS oldest
    FROM clock c, looked k LEFT JOIN guessed g ON g.topic = k.topic
    UNION ALL
    SELECT g.topic, false, g.ready, g.scheduled, NULL FROM guessed g WHERE NOT EXISTS (SELECT FROM large l WHERE l.topic = g.topic)
)
SELECT CASE WHEN t.is_large THEN t.topic END AS topic, count(t.topic)::int AS topics, coalesce(sum(t.ready), 0)::bigint AS ready,
    coalesce(sum(t.scheduled), 0)::bigint AS scheduled, 0::bigint AS running,
    extract(epoch FROM c.at - min(t.oldest))::float8 AS oldest_s, extract(epoch FROM c.at)::float8 AS now_s
FROM clock c LEFT JOIN told t ON true GROUP BY 1, c.at;


-- name: get_gate :many
-- What:    what is paused.   Args: $1 now.   Guard: none: reads.
-- Returns: topic ('' for the whole), reason, paused_at, paused_by, paused_until; and left_s: seconds until that, NULL without.
SELECT g.topic, g.reason, g.paused_at, g.paused_by, g.paused_until,
    extract(epoch FROM g.paused_until - coalesce($1, clock_timestamp()))::float8 AS left_s
FROM pulse.dispatch_control g
WHERE g.paused AND (g.paused_until IS NULL OR g.paused_until > coalesce($1, clock_timestamp())) ORDER BY g.topic;


-- name: pause_dispatch :one
-- What:    close the gate of a topic, '' for the whole.
-- Args:    $1 topic, $2 reason or NULL, $3 who or NULL, $4 until float8 (Unix) or NULL, $5 for_s float8 or NULL, $6 now
-- Guard:   the primary key: one row per topic; a second pause keeps the first one's time and, without one of its own, its
--          reason, as long as that is in force; who and until when are the newer one's.   Returns: topic.
WITH changed AS (
    INSERT INTO pulse.dispatch_control AS g (topic, paused, reason, paused_at, paused_by, paused_until)
    VALUES ($1, true, $2, coalesce($6, clock_timestamp()), $3,
            coalesce(to_timestamp($4), coalesce($6, clock_timestamp()) + $5 * interval '1 second'))
    ON CONFLICT (topic) DO UPDATE
    SET paused = true, paused_by = excluded.paused_by, paused_until = excluded.paused_until,
        reason = CASE WHEN g.paused_until <= excluded.paused_at THEN excluded.reason ELSE coalesce(excluded.reason, g.reason) END,
        paused_at = CASE WHEN g.paused_until <= excluded.paused_at THEN excluded.paused_at
                         ELSE coalesce(g.paused_at, excluded.paused_at) END
    RETURNING g.topic
)
SELECT topic, pulse.tell('pulse_gate', topic)::text AS told FROM changed;


-- name: expire_pauses :many
-- What:    clear pauses whose time is over; the claim does not wait for that.
-- Args:    $1 now
-- Guard:   the time, in the UPDATE itself: one that was prolonged meanwhile stays.   Returns: topic, reason, paused_by.
WITH over AS (
    SELECT g.topic, g.reason, g.paused_by FROM pulse.dispatch_control g
    WHERE g.paused AND g.paused_until <= coalesce($1, clock_timestamp()) ORDER BY g.topic FOR UPDATE
), changed AS (
    UPDATE pulse.dispatch_control g
    SET paused = false, reason = NULL, paused_at = NULL, paused_by = NULL, paused_until = NULL
    FROM over o WHERE g.topic = o.topic AND g.paused AND g.paused_until <= coalesce($1, clock_timestamp())
    RETURNING o.topic, o.reason, o.paused_by
)
SELECT topic, reason, paused_by, pulse.tell('pulse_gate', topic)::text AS told FROM changed;


-- name: resume_dispatch :one
-- What:    open the gate of a topic again.   Args: $1 topic.   Guard: the primary key.   Returns: topic, when it was paused.
WITH changed AS (
    UPDATE pulse.dispatch_control g
    SET paused = false, reason = NULL, paused_at = NULL, paused_by = NULL, paused_until = NULL
    WHERE g.topic = $1 AND g.paused RETURNING g.topic
)
SELECT topic, pulse.tell('pulse_gate', topic)::text AS told FROM changed;


-- name: notify_work :exec
-- What:    tell the dispatchers of all hosts that there is work.
-- Args:    $1 who says so.   Guard: none: a hint, never in a transaction with anything else, so that no commit waits for it.   Returns: nothing.
SELECT pulse.tell('pulse_work', $1);


-- name: note_handlers :exec
-- What:    remember what a worker said of its handlers; the last hello wins.
-- Args:    $1 names text[] (sorted), $2 topics text[], $3 max_attempts int[], $4 timeout_s float8[], $5 max_crashes int[],
--          $6 stall_s float8[], $7 backoff text[] (same length)
-- Guard:   rows in name order; unchanged rows are written at most once a minute.   Returns: nothing.
INSERT INTO pulse.handlers AS h (name, topic, max_attempts, timeout_s, max_crashes, stall_s, backoff)
SELECT d.name, d.topic, d.max_attempts, d.timeout_s, d.max_crashes, d.stall_s, d.backoff
FROM unnest($1::text[], $2::text[], $3::int[], $4::float8[], $5::int[], $6::float8[], $7::text[])
    AS d(name, topic, max_attempts, timeout_s, max_crashes, stall_s, backoff)
ORDER BY d.name
ON CONFLICT (name) DO UPDATE
SET topic = excluded.topic, max_attempts = excluded.max_attempts, timeout_s = excluded.timeout_s, max_crashes = excluded.max_crashes,
    stall_s = excluded.stall_s, backoff = excluded.backoff, seen_at = excluded.seen_at
WHERE (h.topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff) IS DISTINCT FROM
      (excluded.topic, excluded.max_attempts, excluded.timeout_s, excluded.max_crashes, excluded.stall_s, excluded.backoff)
   OR h.seen_at < excluded.seen_at - interval '1 minute';


-- name: set_server_defaults :exec
-- What:    write this server's defaults into the row '' of pulse.topics.
-- Args:    $1 max_attempts int, $2 max_crashes int, $3 backoff text (quadratic is what is done without one: NULL)
-- Guard:   the primary key; unchanged values write nothing.   Returns: nothing.
INSERT INTO pulse.topics AS t (topic, max_attempts, max_crashes, backoff) VALUES ('', $1, $2, nullif($3, 'quadratic'))
ON CONFLICT (topic) DO UPDATE
SET max_attempts = excluded.max_attempts, max_crashes = excluded.max_crashes, backoff = excluded.backoff
WHERE (t.max_attempts, t.max_crashes, t.backoff) IS DISTINCT FROM (excluded.max_attempts, excluded.max_crashes, excluded.backoff);


-- name: set_topic :exec
-- What:    set and unset options of a topic's policy.   Args: $1 topic, $2 options as a JSON object (null: unset)
-- Guard:   in pulse.set_topic: unknown options and values that are not allowed raise 22023.   Returns: nothing.
SELECT pulse.set_topic($1, $2::text::jsonb);


-- name: get_topic :many
-- What:    the policies of a topic and of the server.   Args: $1 topic.   Guard: none: reads.   Returns: the rows that there are.
SELECT t.topic, t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s, t.backoff
FROM pulse.topics t WHERE t.topic IN ($1, '');


-- name: list_topics :many
-- What:    a page of policies, by topic.   Args: $1 after topic or NULL, $2 limit int.   Guard: none: reads.   Returns: the rows, in order.
SELECT t.topic, t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s, t.backoff
FROM pulse.topics t WHERE $1::text IS NULL OR t.topic > $1 ORDER BY t.topic LIMIT $2;


-- name: handlers_of_topic :many
-- What:    handlers whose jobs wait in a topic, where no submit says otherwise: what they declare goes before its policy.
-- Args:    $1 topic.   Guard: none: reads.   Returns: name and what is declared.
SELECT h.name, h.max_attempts, h.max_crashes, h.timeout_s, h.stall_s, h.backoff
FROM pulse.handlers h WHERE coalesce(h.topic, 'default') = $1 ORDER BY h.name LIMIT 1000;


-- name: live_policies :many
-- What:    what servers keep in memory of the policies.   Args: none.   Guard: none: reads.   Returns: the topics that have some of it.
SELECT t.topic, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s FROM pulse.topics t
WHERE t.stall_s IS NOT NULL OR t.lease_s IS NOT NULL OR t.retention_s IS NOT NULL OR t.retention_dead_s IS NOT NULL OR t.ageing_s IS NOT NULL
ORDER BY t.topic;


-- name: look_at_epoch :one
-- What:    which database this is, which server it is on, how far it knows this host to be, and who else is not there yet.
-- Args:    $1 witness uuid, $2 what the database knew of this host when it was first seen here timestamptz (NULL: what it knows now),
--          $3 how long others are waited for after an epoch began float8 seconds, $4 how far apart they may have been seen float8
--          seconds.
-- Guard:   none: reads.
-- Returns: lineage, system_id, timeline, started_at, relation, place (all of these in one), epoch, attempts_floor; counter, epoch_seen,
--          back_to: of this host's own row (without one: when any other was seen last); elsewhere: hosts that were seen then and have
--          not come to this place, behind: hosts that have not accepted this epoch and are waited for; newest: the highest of all
--          witnesses.
WITH here AS MATERIALIZED (
    SELECT c.system_identifier::text AS system_id,
           CASE WHEN NOT pg_is_in_recovery()
                THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline,
           pg_postmaster_start_time() AS started_at, 'pulse.witnesses'::regclass::oid AS relation
    FROM pg_control_system() AS c
), put AS MATERIALIZED (
    SELECT h.*, format('%s/%s/%s/%s/%s', h.system_id, h.timeline, (extract(epoch FROM h.started_at) * 1000000)::bigint,
                       (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), h.relation) AS place
    FROM here h
), seen AS MATERIALIZED (
    SELECT p.*, coalesce($2, (SELECT w.seen_at FROM pulse.witnesses w WHERE w.instance = $1),
                         (SELECT max(w.seen_at) FROM pulse.witnesses w WHERE w.place <> p.place)) AS back_to
    FROM put p
), newest AS MATERIALIZED (
    SELECT e.* FROM pulse.epochs e ORDER BY e.epoch DESC LIMIT 1
)
SELECT (SELECT f.lineage FROM pulse.epochs f WHERE f.epoch = 1) AS lineage, s.system_id, s.timeline, s.started_at, s.relation, s.place,
    n.epoch, n.attempts_floor, w.counter, w.epoch AS epoch_seen, s.back_to,
    (SELECT count(*)::int FROM pulse.witnesses o
     WHERE o.instance <> $1 AND o.place <> s.place AND o.seen_at >= s.back_to - $4 * interval '1 second') AS elsewhere,
    (SELECT count(*)::int FROM pulse.witnesses o
     WHERE o.instance <> $1 AND o.epoch < n.epoch AND n.detail->'hosts' ? o.instance::text
       AND n.began_at > clock_timestamp() - $3 * interval '1 second') AS behind,
    (SELECT max(o.highest) FROM pulse.witnesses o) AS newest
FROM seen s CROSS JOIN newest n LEFT JOIN pulse.witnesses w ON w.instance = $1;


-- name: server_standing :one
-- What:    where the server stands: asked of each new connection.
-- Args:    none.   Guard: none: reads no table.   Returns: system_id, timeline (NULL: it is a standby).
SELECT c.system_identifier::text AS system_id,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline
FROM pg_control_system() AS c;


-- name: tick_witness :one
-- What:    count: from now on a database that has not counted this has gone back.
-- Args:    $1 witness uuid, $2 counter bigint, $3 epoch int, $4 start of the server timestamptz, $5 table oid, $6 highest int,
--          $7 place text
-- Guard:   the fence of claim_jobs.
-- Returns: counter, seen_at; nothing: look again.
UPDATE pulse.witnesses w
SET counter = w.counter + 1, seen_at = clock_timestamp(), highest = greatest(w.highest, $6), place = $7
WHERE w.instance = $1 AND w.counter >= $2 AND w.tableoid = $5 AND pg_postmaster_start_time() = $4
  AND (SELECT max(n.epoch) FROM pulse.epochs n) = $3
RETURNING w.counter, w.seen_at;


-- name: raise_epoch :one
-- What:    a new epoch begins: the database has gone back.
-- Args:    $1 epoch int, $2 floor int: nothing that this host knows of is above it, $3 host text, $4 what the database
--          knows of this host timestamptz, $5 what it had known timestamptz: the clock may have gone back, too, $6 how far apart others may have been seen float8 seconds,
--          $7 system_id text, $8 timeline int, $9 a margin for clocks float8 seconds
-- Guard:   the primary key, and that no newer one has begun: of two hosts one wins, and the other accepts.
-- Returns: the epoch and its floor: a multiple of 1000 above all that any host says it has handed out.
INSERT INTO pulse.epochs (epoch, attempts_floor, first_id, system_id, timeline, went_back_to, known_until, host, detail)
SELECT $1, ceil(greatest($2, n.attempts_floor + 1000, (SELECT max(w.highest) FROM pulse.witnesses w)) / 1000.0)::int * 1000,
    (lpad(to_hex(floor(extract(epoch FROM greatest(clock_timestamp(), $5)) * 1000 + $9::float8 * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid,
    $7, $8, $4, $5, $3,
    jsonb_build_object('hosts', (SELECT coalesce(jsonb_agg(w.instance), '[]') FROM pulse.witnesses w
                                 WHERE coalesce(w.seen_at >= $4::timestamptz - $6::float8 * interval '1 second', true)))
FROM pulse.epochs n
WHERE n.epoch = (SELECT max(e.epoch) FROM pulse.epochs e) AND n.epoch < $1
ON CONFLICT (epoch) DO NOTHING
RETURNING epoch, attempts_floor;


-- name: accept_epoch :one
-- What:    this host has come to this place and this epoch.
-- Args:    $1 witness uuid, $2 host text, $3 counter bigint, $4 epoch int, $5 highest int, $6 place text, $7 its start timestamptz, $8 table oid
-- Guard:   it is the newest epoch, and the server and the table that were looked at; the row is this host's alone.
-- Returns: counter, seen_at, highest; nothing: look again.
INSERT INTO pulse.witnesses AS w (instance, host, counter, epoch, highest, place)
SELECT $1, $2, $3 + 1, $4, greatest($5, e.attempts_floor + 1000), $6 FROM pulse.epochs e
WHERE e.epoch = $4 AND $4 = (SELECT max(n.epoch) FROM pulse.epochs n)
  AND pg_postmaster_start_time() = $7 AND 'pulse.witnesses'::regclass::oid = $8
ON CONFLICT (instance) DO UPDATE SET host = excluded.host, counter = greatest(w.counter + 1, excluded.counter), epoch = excluded.epoch,
    highest = greatest(w.highest, excluded.highest), place = excluded.place, seen_at = clock_timestamp()
RETURNING counter, seen_at, highest;


-- name: running_on :many
-- What:    what the workers of a host hold.   Args: $1 workers text[], $2 host text: all of its own workers too.   Guard: none: reads.
-- Returns: ids.
SELECT uuid_send(j.id) AS id FROM pulse.jobs j
WHERE j.status = 'RUNNING' AND (j.locked_by = ANY ($1::text[]) OR starts_with(j.locked_by, $2 || '/'));


-- name: end_epoch :one
-- What:    what the workers of this host held before the newest epoch is lost to them.   From/to: RUNNING -> RETRYING, PENDING
-- Args:    $1 workers text[], $2 host text: all of its own workers too, $3 why text, $4 ids uuid[]: of these alone (NULL: all),
--          $5 now, $6 for how long nobody begins them float8 seconds: another host may run a later attempt, of which it says so meanwhile.
-- Guard:   id, status, locked_by, attempts: the number is not above the floor, of a job that may be older than the epoch. What somebody
--          else has locked is being ended by his hand, or lapses.
-- Returns: how many. Uncharged, in the order of ids.
WITH fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM pulse.epochs e ORDER BY e.epoch DESC LIMIT 1
), target AS (
    SELECT j.id, j.attempts AS attempt, j.locked_by AS worker, j.started_at FROM pulse.jobs j
    WHERE j.status = 'RUNNING' AND (j.locked_by = ANY ($1::text[]) OR starts_with(j.locked_by, $2 || '/'))
      AND j.attempts <= (SELECT f.attempts_floor FROM fence f)
      AND (j.id < (SELECT f.first_id FROM fence f) OR get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')
      AND ($4::uuid[] IS NULL OR j.id = ANY ($4))
    ORDER BY j.id FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE pulse.jobs j
    SET status = (CASE WHEN t.attempt = j.uncharged + 1 THEN 'PENDING' ELSE 'RETRYING' END)::pulse.job_status,
        next_run_at = coalesce($5, clock_timestamp()) + $6 * interval '1 second', uncharged = j.uncharged + 1, last_error = $3, locked_by = NULL, lease_until = NULL
    FROM target t
    WHERE j.id BETWEEN t.id AND t.id AND j.status::text = 'RUNNING' AND j.locked_by = t.worker AND j.attempts = t.attempt
    RETURNING j.id, j.attempts, t.worker, t.started_at, j.progress
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, error, progress)
    SELECT c.id, c.attempts, c.worker, c.started_at, coalesce($5, clock_timestamp()), 'released', $3, c.progress FROM changed c
    ON CONFLICT (job_id, attempt) DO NOTHING
)
SELECT count(*)::int AS ended FROM changed;


-- name: note_lost :exec
-- What:    attempts that this host's workers hold and that the database does not know any more are in the history: what begins the job
--          again is told whose the attempt before was, also a dispatcher that was started meanwhile.
-- Args:    $1 ids text, $2 attempts text, $3 workers text[] (same length), $4 why text, $5 now
-- Guard:   attempts: what the database knows has ended, or is ended, by its own statement.   Returns: nothing.
INSERT INTO pulse.attempts (job_id, attempt, worker, ended_at, outcome, error)
SELECT j.id, h.attempt, h.worker, coalesce($5, clock_timestamp()), 'released', $4
FROM unnest($1::text::uuid[], $2::text::int[], $3::text[]) AS h(id, attempt, worker)
JOIN pulse.jobs j ON j.id BETWEEN h.id AND h.id AND j.attempts < h.attempt
ON CONFLICT (job_id, attempt) DO NOTHING;
-- name: put_off_jobs :exec
-- What:    jobs of which an attempt from before an epoch may run on this host yet become due a little later, again and again until it has
--          ended: no other host begins them meanwhile.
-- Args:    $1 ids uuid[] (sorted), $2 for how long float8 seconds, $3 now
-- Guard:   status; what is due later stays so.   Returns: nothing.
UPDATE pulse.jobs j SET next_run_at = coalesce($3, clock_timestamp()) + $2 * interval '1 second'
FROM (SELECT o.id FROM pulse.jobs o WHERE o.id = ANY ($1::uuid[]) AND o.status::text IN ('PENDING', 'RETRYING')
      ORDER BY o.id FOR UPDATE SKIP LOCKED) AS l
WHERE j.id = l.id AND j.status::text IN ('PENDING', 'RETRYING') AND j.next_run_at < coalesce($3, clock_timestamp()) + $2 * interval '1 second';


-- name: attempts_gone_back :one
-- What:    are there fewer attempts of one of these jobs than were handed out? They never shrink: the database has gone back.
-- Args:    $1 ids text, $2 attempts text, $3 must they be there? bool[] (same length)
-- Guard:   none: reads.   Returns: gone_back; a job that must be there, and is not, is one, too.
SELECT EXISTS (
    SELECT FROM unnest($1::text::uuid[], $2::text::int[], $3::bool[]) AS d(id, attempt, is_kept)
    LEFT JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id
    WHERE j.attempts < d.attempt OR (j.id IS NULL AND d.is_kept)) AS gone_back;


-- name: open_again :many
-- What:    which of these jobs, that were completed, are not.
-- Args:    $1 ids text
-- Guard:   none: reads.   Returns: ids.
SELECT uuid_send(j.id) AS id FROM unnest($1::text::uuid[]) AS d(id)
JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING');


-- name: note_reopened :exec
-- What:    tell with the epoch how many jobs were known to be finished that the database listed as open, and the first of them.
-- Args:    $1 epoch int, $2 how many int, $3 ids uuid[]
-- Guard:   none: each host that accepts adds its own once.   Returns: nothing.
UPDATE pulse.epochs e
SET reopened = coalesce(e.reopened, 0) + $2,
    detail = jsonb_set(e.detail, '{reopened}', coalesce(e.detail->'reopened', '[]') || to_jsonb($3::uuid[]))
WHERE e.epoch = $1;


-- name: note_host :exec
-- What:    this host's supervisor was here.   Args: $1 host, $2 boot, $3 pidns bigint.   Guard: the primary key.   Returns: nothing.
INSERT INTO pulse.hosts (host, boot, pidns) VALUES ($1, $2, $3)
ON CONFLICT (host, boot, pidns) DO UPDATE SET seen_at = clock_timestamp();


-- name: host_boots :many
-- What:    the boots of a host, and how long ago each was seen: a boot that was last seen before this kernel started is over.
-- Args:    $1 host, $2 now.   Guard: none: reads.   Returns: boot, seen_ago_s.
SELECT h.boot, extract(epoch FROM coalesce($2, clock_timestamp()) - max(h.seen_at))::float8 AS seen_ago_s
FROM pulse.hosts h WHERE h.host = $1 GROUP BY h.boot;


-- name: set_operator :exec
-- What:    who asks for what this transaction does; pulse.note writes it down.   Args: $1 JSON text.   Guard: this transaction only.   Returns: nothing.
SELECT set_config('pulse.operator', $1, true);


-- name: note_action :exec
-- What:    what an operator did.
-- Args:    $1 action, $2 topic, $3 schedule uuid, $4 job uuid, $5 jobs int, $6 detail as JSON text (each but the action may be NULL)
-- Guard:   none: in the transaction of what was done.   Returns: nothing.
SELECT pulse.note($1, $2, $3, $4, $5, $6::text::jsonb);


-- name: list_actions :many
-- What:    a page of what operators did, newest first, keyset by (at, id).
-- Args:    $1 action or NULL (one that ends with a dot: all that begin so), $2 topic or NULL, $3 since_s float8 or NULL, $4 after at
--          or NULL, $5 after id bigint or NULL, $6 limit int, $7 now
-- Guard:   none: reads.   Returns: the rows, in order.
SELECT a.id, a.at, a.action, a.uid, a.user_name, a.behalf, a.host, a.pid, a.topic, uuid_send(a.schedule_id) AS schedule_id,
    uuid_send(a.job_id) AS job_id, a.jobs, a.detail::text AS detail
FROM pulse.audit a
WHERE ($1::text IS NULL OR a.action = $1 OR ($1 LIKE '%.' AND starts_with(a.action, $1))) AND ($2::text IS NULL OR a.topic = $2)
  AND ($3::float8 IS NULL OR a.at >= coalesce($7, clock_timestamp()) - $3 * interval '1 second')
  AND ($4::timestamptz IS NULL OR (a.at, a.id) < ($4, $5::bigint))
ORDER BY a.at DESC, a.id DESC LIMIT $6;


-- name: forget_actions :one
-- What:    delete what operators did long ago.   Args: $1 keep_s float8, $2 limit int, $3 now
-- Guard:   the time, in the DELETE; under SKIP LOCKED: another server may be at it.   Returns: how many.
WITH old AS (
    SELECT a.id FROM pulse.audit a WHERE a.at < coalesce($3, clock_timestamp()) - $1 * interval '1 second'
    ORDER BY a.at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM pulse.audit a USING old o WHERE a.id = o.id RETURNING a.id
)
SELECT count(*) AS gone FROM gone;


-- name: note_retention :exec
-- What:    how far the deleting of old jobs has got: a round begins, goes on or ends.
-- Args:    $1 walked bigint and $2 gone bigint since this was noted last, $3 begins boolean, $4 ends boolean, $5 now
-- Guard:   the row's lock.   Returns: nothing.
UPDATE pulse.retention_mark m
SET stepped_at = coalesce($5, clock_timestamp()), began_at = CASE WHEN $3 THEN coalesce($5, clock_timestamp()) ELSE m.began_at END,
    walked = CASE WHEN $3 THEN 0 ELSE m.walked END + $1, gone = CASE WHEN $3 THEN 0 ELSE m.gone END + $2,
    ended_at = CASE WHEN $4 THEN coalesce($5, clock_timestamp()) ELSE m.ended_at END,
    last_began_at = CASE WHEN $4 AND NOT $3 THEN m.began_at WHEN $4 THEN coalesce($5, clock_timestamp()) ELSE m.last_began_at END,
    last_walked = CASE WHEN $4 THEN CASE WHEN $3 THEN 0 ELSE m.walked END + $1 ELSE m.last_walked END,
    last_gone = CASE WHEN $4 THEN CASE WHEN $3 THEN 0 ELSE m.gone END + $2 ELSE m.last_gone END,
    total_gone = m.total_gone + $2;


-- name: retention_progress :one
-- What:    how far the deleting of old jobs has got.   Args: none.   Guard: none: reads.   Returns: the row.
SELECT m.stepped_at, m.began_at, m.walked, m.gone, m.ended_at, m.last_began_at, m.last_walked, m.last_gone, m.total_gone
FROM pulse.retention_mark m;


-- name: mark_sweep :one
-- What:    a watchdog begins to sweep: note when, and say when the sweep before it was, whichever watchdog made it. After
--          a gap nobody may reap for a while: that is noted too, for those who see no gap because this one's mark is new;
--          never for longer than that while, however far the clock was set back since.
-- Args:    $1 gap_s float8: the longest that is none, $2 wait_s float8: how long to wait after one, $3 now
-- Guard:   the row's lock: of two that begin at once one waits, and sees the other's mark. And the lock of the table that a
--          heartbeat takes: while nobody can extend a lease no mark is made either, so that this is a gap to everybody.
-- Returns: seconds since the newest mark, the database's time in Unix seconds, seconds until sweeps may reap (0: now).
WITH writable AS (
    UPDATE pulse.jobs j SET lease_until = j.lease_until WHERE false
), before AS (SELECT m.swept_at, coalesce($3, clock_timestamp()) AS now FROM pulse.sweep_mark m FOR UPDATE)
UPDATE pulse.sweep_mark m
SET swept_at = b.now,
    wait_until = CASE WHEN b.now - b.swept_at > $1 * interval '1 second' THEN b.now + $2 * interval '1 second'
                      ELSE LEAST(m.wait_until, b.now + $2 * interval '1 second') END
FROM before b
RETURNING extract(epoch FROM m.swept_at - b.swept_at)::float8 AS gap_s, extract(epoch FROM m.swept_at)::float8 AS now_s,
    CASE WHEN m.wait_until > m.swept_at THEN extract(epoch FROM m.wait_until - m.swept_at)::float8 ELSE 0 END AS wait_s;


-- name: create_schedule :one
-- What:    a new schedule.
-- Args:    $1 id uuid, $2 name, $3 topic, $4 args text, $5 kind, $6 cron, $7 timezone, $8 every_s, $9 run_at, $10 next_run_at,
--          $11 priority, $12 max_attempts, $13 timeout_s, $14 following_run_at, $15 starts_at, $16 ends_at, $17 jitter_s,
--          $18 catch_up, $19 overlap, $20 key, $21 declared_by
-- Guard:   the primary key and the key: nothing is returned when one of them exists.   Returns: id.
INSERT INTO pulse.schedules AS s (id, name, topic, args, kind, cron, timezone, every_s, run_at, next_run_at, priority, max_attempts,
    timeout_s, following_run_at, starts_at, ends_at, jitter_s, catch_up, overlap, key, declared_by, reckon)
VALUES ($1, $2, $3, $4::text::jsonb, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    $5 = 'cron' AND $10::timestamptz IS NOT NULL AND $14::timestamptz IS NULL)
ON CONFLICT DO NOTHING
RETURNING uuid_send(s.id) AS id;


-- name: update_schedule :one
-- What:    change a schedule; its cursor stays unless when it occurs is changed, too.
-- Args:    as create_schedule, and $22 revision int that was read, $23 moved boolean: whether next and following are set
-- Guard:   the revision: of two that change it at once the second is told nothing, and reads again.   Returns: id.
UPDATE pulse.schedules s
SET name = $2, topic = $3, args = $4::text::jsonb, kind = $5, cron = $6, timezone = $7, every_s = $8, run_at = $9, priority = $11,
    max_attempts = $12, timeout_s = $13, starts_at = $15, ends_at = $16, jitter_s = $17, catch_up = $18, overlap = $19, key = $20,
    declared_by = $21, undeclared_at = NULL, revision = s.revision + 1, error = NULL,
    next_run_at = CASE WHEN $23 THEN $10 ELSE s.next_run_at END,
    following_run_at = CASE WHEN $23 THEN $14 ELSE s.following_run_at END,
    reckon = CASE WHEN $23 THEN $10::timestamptz IS NOT NULL AND $14::timestamptz IS NULL ELSE s.reckon OR s.error IS NOT NULL END
WHERE s.id = $1 AND s.revision = $22
RETURNING uuid_send(s.id) AS id;


-- name: get_schedule :one
-- What:    one schedule.   Args: $1 id uuid.   Guard: none: reads.   Returns: the row, or nothing.
SELECT uuid_send(s.id) AS id, s.name, s.topic, s.args::text AS args, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.next_run_at,
    s.last_run_at, s.paused, s.priority, s.max_attempts, s.timeout_s, s.created_at, s.due_at, s.following_run_at, s.starts_at,
    s.ends_at, s.jitter_s, s.catch_up, s.overlap, s.key, s.declared_by, s.undeclared_at, s.waiting, s.error, s.revision
FROM pulse.schedules s WHERE s.id = $1;


-- name: list_schedules :many
-- What:    a page of schedules, newest first, keyset by (created_at, id).
-- Args:    $1 after created_at or NULL, $2 after id or NULL, $3 limit int.   Guard: none: reads.   Returns: the rows, in order.
SELECT uuid_send(s.id) AS id, s.name, s.topic, s.args::text AS args, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.next_run_at,
    s.last_run_at, s.paused, s.priority, s.max_attempts, s.timeout_s, s.created_at, s.due_at, s.following_run_at, s.starts_at,
    s.ends_at, s.jitter_s, s.catch_up, s.overlap, s.key, s.declared_by, s.undeclared_at, s.waiting, s.error, s.revision
FROM pulse.schedules s
WHERE $1::timestamptz IS NULL OR (s.created_at, s.id) < ($1, $2::uuid)
ORDER BY s.created_at DESC, s.id DESC LIMIT $3;


-- name: pause_schedule :one
-- What:    fire nothing until it is resumed, or (again) from now on; what was missed then, catch_up decides.
-- Args:    $1 id uuid, $2 paused boolean.   Guard: the primary key.   Returns: id, or nothing.
UPDATE pulse.schedules s SET paused = $2 WHERE s.id = $1 RETURNING uuid_send(s.id) AS id;


-- name: trigger_schedule :one
-- What:    a job of this schedule now, beside its occurrences.
-- Args:    $1 schedule uuid, $2 job uuid.   Guard: the job's primary key: asked twice it is one job.   Returns: id of the job, or NULL.
SELECT uuid_send(pulse.trigger_schedule($1, $2)) AS id;


-- name: delete_schedule :one
-- What:    remove a schedule; its jobs stay, but those that are held back behind another one are canceled.
-- Args:    $1 id uuid.   Guard: the primary key; status and the mark of held jobs, in the function.   Returns: whether there was one.
SELECT pulse.delete_schedule($1) AS done;


-- name: due_schedules :many
-- What:    schedules whose occurrence is to fire.
-- Args:    $1 limit int, $2 now
-- Guard:   none: reads; fire_schedules compares the cursor.
-- Returns: id, the cursor, what the next occurrences are reckoned from, and the database's time.
SELECT s.id, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.starts_at, s.ends_at, s.jitter_s, s.catch_up, s.next_run_at,
    s.following_run_at, s.reckon, s.revision, coalesce($2, clock_timestamp()) AS now
FROM pulse.schedules s
WHERE s.due_at <= coalesce($2, now()) AND s.next_run_at IS NOT NULL AND NOT s.paused AND s.error IS NULL
ORDER BY s.due_at LIMIT $1;


-- name: next_schedule :one
-- What:    when there is something to do.   Args: $1 now.   Guard: none: reads.
-- Returns: due_s: seconds until the next occurrence fires, NULL when none will; whether something is to be reckoned; whether jobs are held back.
SELECT (SELECT extract(epoch FROM min(s.due_at) - coalesce($1, clock_timestamp()))::float8 FROM pulse.schedules s
        WHERE s.next_run_at IS NOT NULL AND NOT s.paused AND s.error IS NULL) AS due_s,
    EXISTS (SELECT FROM pulse.schedules s WHERE s.reckon) AS reckon,
    EXISTS (SELECT FROM pulse.schedules s WHERE s.waiting > 0) AS waiting;


-- name: fire_schedules :many
-- What:    fire occurrences: move each cursor on and insert its job, in one statement; and where an earlier job of the schedule
--          is not finished, do as its overlap says.
--          From/to: none -> PENDING
--          From/to: PENDING, RETRYING, RUNNING -> CANCELED
-- Args:    $1 schedule ids uuid[], $2 expected cursors timestamptz[], $3 expected revisions int[], $4 occurrences timestamptz[] (NULL: none,
--          they are passed over), $5 next cursors timestamptz[] (NULL: no more), $6 the ones after those timestamptz[] (NULL: not
--          reckoned, or none; all of the same length, sorted by schedule id), $7 most jobs that one schedule holds back int, $8 the same
--          of one that makes up for all that it missed, $9 now
-- Guard:   compare-and-set on the cursor, locked in id order first: of two that fire the same occurrence one finds it moved; the
--          revision, for what was reckoned by another rule; and no job of that occurrence yet: not even a cursor that was set back
--          fires twice. Its id is a new one: one that could be reckoned whoever may submit could take beforehand, and keep the
--          occurrence back, or for as long as his transaction lasts all that are due with it.
-- Returns: id and verdict (fired, held, skipped, full, passed) of each that was moved; and by themselves, since a join of what no
--          statistics tell of would be a loop in a loop: id, topic and priority of each job inserted; id and the job canceled.
WITH due AS (
    SELECT s.id, s.next_run_at, s.revision, d.occurrence, d.next_at, d.following_at, s.overlap, s.last_job_id, s.waiting,
           CASE s.catch_up WHEN 'all' THEN $8::int ELSE $7::int END AS most_held,
           (SELECT x.id FROM pulse.jobs x WHERE x.schedule_id = s.id AND x.occurrence = d.occurrence LIMIT 1) AS there_id
    FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[])
        AS d(id, cursor, revision, occurrence, next_at, following_at)
    JOIN pulse.schedules s ON s.id = d.id
    WHERE s.next_run_at = d.cursor AND s.revision = d.revision AND NOT s.paused
    ORDER BY s.id FOR UPDATE OF s
), judged AS (
    SELECT d.*, coalesce(d.there_id, pulse.uuid7()) AS job_id, CASE
        WHEN d.occurrence IS NULL THEN 'passed'
        WHEN d.overlap IN ('allow', 'cancel') THEN 'fired'
        WHEN NOT (d.waiting > 0 OR EXISTS (SELECT FROM pulse.jobs j WHERE j.id BETWEEN d.last_job_id AND d.last_job_id
                                           AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING'))) THEN 'fired'
        WHEN d.overlap = 'skip' THEN 'skipped'
        WHEN d.waiting < d.most_held OR (  -- of those that were counted some may have been canceled
            SELECT count(*) FROM pulse.jobs q
            WHERE q.schedule_id = d.id AND q.status = 'PENDING' AND q.next_run_at = '9999-12-30 00:00+00') < d.most_held THEN 'held'
        ELSE 'full' END AS verdict
    FROM due d
), moved AS (
    UPDATE pulse.schedules s
    SET next_run_at = d.next_at, following_run_at = d.following_at,
        reckon = s.kind = 'cron' AND d.next_at IS NOT NULL AND d.following_at IS NULL,
        last_run_at = CASE WHEN d.verdict IN ('fired', 'held') THEN GREATEST(s.last_run_at, d.occurrence) ELSE s.last_run_at END,
        last_job_id = CASE WHEN d.verdict = 'fired' THEN d.job_id ELSE s.last_job_id END,
        waiting = s.waiting + (d.verdict = 'held')::int
    FROM judged d WHERE s.id = d.id AND s.next_run_at = d.next_run_at AND s.revision = d.revision AND NOT s.paused
    RETURNING s.id, s.name, s.args, s.topic, s.priority, s.max_attempts, s.timeout_s, d.occurrence, d.job_id, d.there_id, d.verdict,
        CASE WHEN d.overlap = 'cancel' AND d.verdict = 'fired' THEN d.last_job_id END AS old_job_id
), put AS (
    INSERT INTO pulse.jobs AS j (id, name, args, topic, priority, submitted_at, next_run_at, max_attempts, timeout_s, schedule_id, occurrence)
    SELECT m.job_id, m.name, m.args, coalesce(m.topic, h.topic, 'default'), m.priority, coalesce($9, clock_timestamp()),
           CASE WHEN m.verdict = 'held' THEN '9999-12-30 00:00+00' ELSE coalesce($9, clock_timestamp()) END,
           coalesce(m.max_attempts, h.max_attempts, t.max_attempts, s.max_attempts),
           coalesce(m.timeout_s, h.timeout_s, t.timeout_s, s.timeout_s), m.id, m.occurrence
    FROM moved m
    LEFT JOIN pulse.handlers h ON h.name = m.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(m.topic, h.topic, 'default')
    LEFT JOIN pulse.topics s ON s.topic = ''
    WHERE m.verdict IN ('fired', 'held') AND m.there_id IS NULL
    RETURNING j.schedule_id, j.topic, j.priority
), old AS (
    SELECT j.id, m.id AS schedule_id, j.status, j.attempts, j.locked_by, j.started_at, j.progress
    FROM moved m JOIN pulse.jobs j ON j.id BETWEEN m.old_job_id AND m.old_job_id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    WHERE m.old_job_id <> m.job_id ORDER BY j.id FOR UPDATE OF j
), canceled AS (
    UPDATE pulse.jobs j
    SET status = 'CANCELED', completed_at = coalesce($9, clock_timestamp()), locked_by = NULL, lease_until = NULL
    FROM old o WHERE j.id = o.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    RETURNING j.id, o.schedule_id, j.completed_at
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, progress)
    SELECT o.id, o.attempts, o.locked_by, o.started_at, c.completed_at, 'canceled', o.progress
    FROM old o JOIN canceled c ON c.id = o.id WHERE o.status = 'RUNNING'
    ON CONFLICT (job_id, attempt) DO NOTHING
)
SELECT uuid_send(m.id) AS id, m.verdict, NULL::text AS topic, NULL::smallint AS priority, NULL::bytea AS canceled FROM moved m
UNION ALL SELECT uuid_send(p.schedule_id), NULL, p.topic, p.priority, NULL FROM put p
UNION ALL SELECT uuid_send(c.schedule_id), NULL, NULL, NULL, uuid_send(c.id) FROM canceled c;


-- name: release_held :many
-- What:    of schedules whose last job is finished, let the oldest job go that was held back behind it.
-- Args:    $1 limit int, $2 now
-- Guard:   the schedule's row, locked in id order: of two that release, one sees the other's job as the last; REPEATABLE READ, so
--          that no schedule is written of which another job was held back since this one counted; status and the mark of held
--          jobs, tested again in the UPDATE.   Returns: topic, priority of the jobs that may run now.
WITH ready AS (
    SELECT s.id, s.last_job_id FROM pulse.schedules s
    WHERE s.waiting > 0 AND NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.id BETWEEN s.last_job_id AND s.last_job_id
                                        AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING'))
    ORDER BY s.id LIMIT $1 FOR UPDATE OF s
), held AS (
    SELECT r.id AS schedule_id, h.job_id, h.jobs
    FROM ready r CROSS JOIN LATERAL (
        SELECT (array_agg(j.id ORDER BY j.occurrence))[1] AS job_id, count(*)::int AS jobs FROM pulse.jobs j
        WHERE j.schedule_id = r.id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00') AS h
), moved AS (
    UPDATE pulse.schedules s SET last_job_id = coalesce(h.job_id, s.last_job_id), waiting = GREATEST(h.jobs - 1, 0)
    FROM held h WHERE s.id = h.schedule_id
)
UPDATE pulse.jobs j SET next_run_at = coalesce($2, clock_timestamp())
FROM held h WHERE j.id BETWEEN h.job_id AND h.job_id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00'
RETURNING j.topic, j.priority;


-- name: unreckoned_schedules :many
-- What:    schedules of which something is to be reckoned.   Args: $1 limit int, $2 now.   Guard: none: reads.
-- Returns: what it is reckoned from, and the database's time.
SELECT s.id, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.starts_at, s.ends_at, s.jitter_s, s.catch_up, s.next_run_at,
    s.following_run_at, s.reckon, s.revision, coalesce($2, clock_timestamp()) AS now
FROM pulse.schedules s WHERE s.reckon ORDER BY s.id LIMIT $1;


-- name: reckon_schedules :many
-- What:    note what was reckoned: the next occurrence where there was none, and the one after it.
-- Args:    $1 ids uuid[] (sorted), $2 cursors that were read timestamptz[], $3 revisions int[], $4 next timestamptz[],
--          $5 following timestamptz[], $6 errors text[] (same length; NULL: it can be followed)
-- Guard:   the cursor and the revision that it was reckoned from; locked in id order. One that could not be followed is no
--          exception: it would be reckoned again without an end.   Returns: id.
WITH mine AS (
    SELECT s.id, d.next_at, d.following_at, d.error
    FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::timestamptz[], $5::timestamptz[], $6::text[])
        AS d(id, cursor, revision, next_at, following_at, error)
    JOIN pulse.schedules s ON s.id = d.id
    WHERE s.next_run_at IS NOT DISTINCT FROM d.cursor AND s.revision = d.revision
    ORDER BY s.id FOR UPDATE OF s
)
UPDATE pulse.schedules s SET next_run_at = m.next_at, following_run_at = m.following_at, error = m.error, reckon = false
FROM mine m WHERE s.id = m.id
RETURNING uuid_send(s.id) AS id;


-- name: retry_stuck_schedules :exec
-- What:    look again at those that could not be followed: a new pulse may know more time zones.   Args: none.
-- Guard:   none: idempotent; rows in no order, but only at a start.   Returns: nothing.
UPDATE pulse.schedules s SET error = NULL, reckon = true WHERE s.error IS NOT NULL;


-- name: undeclare_schedules :many
-- What:    note which schedules an application declares no longer; they go on until somebody deletes them.
-- Args:    $1 declared_by text, $2 keys text[] that it declares
-- Guard:   those of this application alone, each once; locked in id order.   Returns: id, key.
WITH gone AS (
    SELECT s.id FROM pulse.schedules s
    WHERE s.declared_by = $1 AND s.undeclared_at IS NULL AND NOT s.key = ANY ($2::text[])
    ORDER BY s.id FOR UPDATE
)
UPDATE pulse.schedules s SET undeclared_at = clock_timestamp() FROM gone g WHERE s.id = g.id RETURNING uuid_send(s.id) AS id, s.key;


-- name: schema_version :one
-- What:    the newest installed version.   Args: none.   Guard: none: reads.
-- Returns: version, release (NULL: the table has no such column); nothing, 42P01 or 3F000 when not installed.
SELECT v.version, to_jsonb(v) ->> 'release' AS release FROM pulse.schema_version v ORDER BY v.version DESC LIMIT 1;


-- name: schema_lock :exec
-- What:    one migration at a time, in this database; released at the end of the transaction.
-- Args: none.   Guard: pg_advisory_xact_lock, bounded by lock_timeout.   Returns: nothing.
SELECT pg_advisory_xact_lock(hashtextextended('pulse schema', 0));


-- name: schema_limits :one
-- What:    how long a migration may wait for another one, that its statements may take their time, and that what they call is
--          looked for in pg_catalog alone: a function of somebody else in public must not be called by whoever owns the schema.
-- Args:    $1 lock timeout, as PostgreSQL writes it.   Guard: none: this transaction only.   Returns: nothing of use.
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true), set_config('search_path', 'pg_catalog, pg_temp', true);


-- name: schema_standing :one
-- What:    who is connected, who owns the schema, and whether it has the roles of `pulse migrate --roles`.
-- Args:    none.   Guard: none: reads.
-- Returns: role, owner (NULL: there is no schema), is_super, may_make_roles, prefix (NULL: it has none).
SELECT m.rolname::text AS role, o.rolname::text AS owner, m.rolsuper AS is_super, m.rolcreaterole AS may_make_roles,
    CASE WHEN o.rolname LIKE '%owner' AND (
        SELECT count(*) FROM pg_roles r
        WHERE r.rolname IN (left(o.rolname, -5) || 'server', left(o.rolname, -5) || 'submit', left(o.rolname, -5) || 'read')
          AND has_schema_privilege(r.oid, n.oid, 'USAGE')) = 3 THEN left(o.rolname, -5) END AS prefix
FROM pg_roles m LEFT JOIN pg_namespace n ON n.nspname = 'pulse' LEFT JOIN pg_roles o ON o.oid = n.nspowner
WHERE m.rolname = current_user;


-- name: become_role :one
-- What:    be that role until the transaction ends: what is made then is its own.   Args: $1 role.   Guard: none: this transaction only.   Returns: role.
SELECT set_config('role', $1, true) AS role;


-- name: roles_found :many
-- What:    which of these roles are there, and whether one of them may do what no role of pulse may.
-- Args:    $1 names text[].   Guard: none: reads.   Returns: name, is_mighty.
SELECT r.rolname::text AS name, r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls AS is_mighty
FROM pg_roles r WHERE r.rolname = ANY ($1::text[]);


-- name: role_members :many
-- What:    to whom a role was granted.   Args: $1 role.   Guard: none: reads.   Returns: name, in order.
SELECT DISTINCT m.rolname::text AS name FROM pg_auth_members a JOIN pg_roles m ON m.oid = a.member JOIN pg_roles r ON r.oid = a.roleid
WHERE r.rolname = $1 ORDER BY 1;


-- name: server_now :one
-- What:    is the database there, and what is it?   Args: none.   Guard: none: reads.   Returns: server_version, now.
SELECT current_setting('server_version') AS server_version, clock_timestamp() AS now;
