-- New jobs. A submit that may have been stored before is repeated by submit_again.


-- fragment: resolved_options
-- What:    topic, max_attempts and timeout_s of a job d: its own, else its handler's (h), else its topic's (t), else the server's; and
--          is_parent, if its topic publishes ends.
--          The functions of schema.sql resolve them likewise: see pulse.resolved_options.
coalesce(d.topic, h.topic, 'default') AS topic,
coalesce(d.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')) AS max_attempts,
coalesce(d.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')) AS timeout_s,
nullif(t.publish, false) AS is_parent


-- fragment: option_sources
-- What:    the handler h and the topic t of a job d, for resolved_options.
LEFT JOIN pulse.handlers h ON h.name = d.name
LEFT JOIN pulse.topics t ON t.topic = coalesce(d.topic, h.topic, 'default')


-- fragment: insert_jobs
-- What:    what all statements insert that submit jobs without keys; what follows says where name, topic and options are from.
INSERT INTO pulse.jobs (id, args, priority, submitted_at, next_run_at, expires_at, traceparent, group_key, name, topic, max_attempts,
                        timeout_s, is_parent)
SELECT d.id, d.args::jsonb, coalesce(d.priority, 0), coalesce($14, clock_timestamp()),
       coalesce(to_timestamp(d.run_at), coalesce($14, now()) + coalesce(d.delay_s, 0) * interval '1 second')
           + (d.place - 1) * interval '1 microsecond',
       coalesce(to_timestamp(d.expires_at), coalesce($14, now()) + d.expires_in_s * interval '1 second'), d.traceparent, d.group_key,


-- fragment: insert_each
-- What:    the same for submit_jobs and submit_again, which look up the options of each job; their arguments are the same.
-- :include insert_jobs
       d.name,
       -- :include resolved_options
FROM unnest($1::text::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::float8[], $7::float8[], $8::int[], $9::float8[],
            $10::float8[], $11::float8[], $12::text[], $13::text[])
    WITH ORDINALITY AS d(id, name, args, topic, priority, run_at, delay_s, max_attempts, timeout_s, expires_at, expires_in_s, traceparent,
                         group_key, place)
-- :include option_sources
ORDER BY d.id


-- fragment: inserted_levels
-- What:    the levels that got work, of the rows `put`.
SELECT topic, priority, extract(epoch FROM min(next_run_at) FILTER (WHERE next_run_at <= coalesce($14, now()) + interval '1 second'))::float8
    AS due_s, count(*)::int AS jobs, group_key FROM put GROUP BY topic, priority, group_key


-- name: submit_jobs :many
-- What:    insert jobs, resolving topic, max_attempts and timeout_s: job, else handler, else topic, else server.   From/to: none -> PENDING
-- Args:    $1 ids text, $2 names text[], $3 args text[], $4 topics text[], $5 priorities smallint[], $6 run_at float8[] (Unix),
--          $7 delay_s float8[], $8 max_attempts int[], $9 timeout_s float8[], $10 expires_at float8[] (Unix), $11 expires_in_s
--          float8[], $12 traceparents text[], $13 groups text[] (same length; NULL elements: resolve; from $4 on they may
--          be shorter: NULL), $14 now
-- Guard:   the primary key: an id that exists raises 23505, and nothing of the whole call is inserted. In id order: two
--          servers that get the same jobs in another order wait for each other, but never in a circle.
-- Returns: the levels (topic, priority, group) that got work, with the first due time of what is due now (Unix seconds; NULL: nothing
--          is): what to wake; and how many jobs they got.
WITH put AS (
    -- :include insert_each
    RETURNING topic, priority, next_run_at, group_key
)
-- :include inserted_levels
;


-- name: submit_alike :many
-- What:    the same for jobs of a few kinds: those with one name, and one topic of their own, are of one kind, and each kind is looked up
--          once. A quarter faster; but the place of a kind in an array is counted off for each job, so not for many kinds.
--          From/to: none -> PENDING
-- Args:    $1 ids text to $14 now as for submit_jobs, but $2 names and $4 topics are of each kind; $15 kinds text (of each job: from 1)
-- Guard:   the primary key, as above.   Returns: the levels, as above.
WITH kinds AS MATERIALIZED (
    SELECT array_agg(k.name ORDER BY k.place) AS names, array_agg(k.topic ORDER BY k.place) AS topics,
           array_agg(k.max_attempts ORDER BY k.place) AS max_attempts, array_agg(k.timeout_s ORDER BY k.place) AS timeout_s,
           array_agg(k.is_parent ORDER BY k.place) AS is_parent
    FROM (
        SELECT d.name, d.place,
               -- :include resolved_options
        FROM (SELECT u.name, u.topic, NULL::int AS max_attempts, NULL::float8 AS timeout_s, u.place
              FROM unnest($2::text[], $4::text[]) WITH ORDINALITY AS u(name, topic, place)) AS d
        -- :include option_sources
    ) AS k
), put AS (
    -- :include insert_jobs
           k.names[d.kind], k.topics[d.kind], coalesce(d.max_attempts, k.max_attempts[d.kind]),
           coalesce(d.timeout_s, k.timeout_s[d.kind]), k.is_parent[d.kind]
    FROM unnest($1::text::uuid[], $15::text::int[], $3::text[], $5::smallint[], $6::float8[], $7::float8[], $8::int[], $9::float8[],
                $10::float8[], $11::float8[], $12::text[], $13::text[])
        WITH ORDINALITY AS d(id, kind, args, priority, run_at, delay_s, max_attempts, timeout_s, expires_at, expires_in_s, traceparent,
                             group_key, place)
    CROSS JOIN kinds k
    ORDER BY d.id
    RETURNING topic, priority, next_run_at, group_key
)
-- :include inserted_levels
;


-- name: submit_again :many
-- What:    as submit_jobs, for one request some of whose ids may exist already: a submit whose answer was lost.   From/to: none -> PENDING
-- Args:    $1 ids text to $14 now, as for submit_jobs.
-- Guard:   ON CONFLICT (id) DO NOTHING; the caller compares what was there (submitted_differently) in the same transaction.
-- Returns: the levels (topic, priority, group) that got work, as above.
WITH put AS (
    -- :include insert_each
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, priority, next_run_at, group_key
)
-- :include inserted_levels
;


-- name: submit_and_claim :many
-- What:    insert due jobs for which workers have room, and hand them out: one write and one wait for the disk instead of two, as
--          by submit_jobs and claim_jobs.   From/to: none -> PENDING, RUNNING
-- Args:    $1 ids text, $2 names text[], $3 args text[], $4 topics text[], $5 priorities smallint[], $6 max_attempts int[],
--          $7 timeout_s float8[], $8 expires_at float8[] (Unix), $9 expires_in_s float8[] (as above), $10 workers text[] (of each
--          job), $11 topics text[] that they serve, $12 lease_s float8, $13 traceparents text[], $14
--          groups text[] (of each job, as above), $15 witness uuid, $16 its counter bigint, $17 epoch int, $18 start of the
--          server timestamptz, $19 table oid (of the fence, as of claim_jobs), $20 now
-- Guard:   the primary key, as above, and the fence, as of claim_jobs. A job is RUNNING at once only if a claim could take it: the fence
--          holds, its topic is served, not paused and without a limit, it is of no group, it has not expired. Else it is PENDING. The
--          caller makes sure that no job waits for these seats.
-- Returns: the jobs, with the columns of claim_jobs that differ between them; attempt and worker are NULL: it is PENDING.
WITH clock AS MATERIALIZED (SELECT coalesce($20, clock_timestamp()) AS at), fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM (SELECT n.* FROM pulse.epochs n ORDER BY n.epoch DESC LIMIT 1) AS e
    WHERE ($15::uuid IS NULL OR (e.epoch = $17 AND pg_postmaster_start_time() = $18 AND EXISTS (
          SELECT FROM pulse.witnesses w WHERE w.instance = $15 AND w.counter >= $16 AND w.tableoid = $19)))
)
INSERT INTO pulse.jobs (id, name, args, topic, priority, submitted_at, next_run_at, max_attempts, timeout_s, expires_at, traceparent,
                        group_key, is_parent, status, attempts, uncharged, locked_by, started_at, lease_until)
SELECT n.id, n.name, n.args, n.topic, n.priority, coalesce($20, clock_timestamp()), n.due_at, n.max_attempts, n.timeout_s, n.expires_at, n.traceparent,
       n.group_key, n.is_parent, CASE WHEN n.is_open THEN 'RUNNING' ELSE 'PENDING' END::pulse.job_status,
       CASE WHEN n.is_open THEN n.floor + 1 ELSE 0 END, CASE WHEN n.is_open THEN n.floor ELSE 0 END, CASE WHEN n.is_open THEN n.worker END,
       CASE WHEN n.is_open THEN greatest((SELECT c.at FROM clock c), n.due_at) END,
       CASE WHEN n.is_open THEN coalesce($20, clock_timestamp()) + $12 * interval '1 second' END
FROM (
    SELECT r.*, CASE WHEN f.attempts_floor > 0 AND (r.id < f.first_id OR get_byte(uuid_send(r.id), 6) >> 4 <> 7
                                                    OR r.id >= '04000000-0000-0000-0000-000000000000')
                     THEN f.attempts_floor ELSE 0 END AS floor,
           r.topic = ANY ($11::text[]) AND r.group_key IS NULL AND f.first_id IS NOT NULL
               AND coalesce(r.expires_at > greatest((SELECT c.at FROM clock c), r.due_at), true)
               AND NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', r.topic)
                                 AND coalesce(g.paused_until > coalesce($20, now()), true))
               AND NOT EXISTS (SELECT FROM pulse.limits x WHERE x.group_key = '' AND x.name = coalesce(
                        (SELECT p.limit_name FROM pulse.topics p WHERE p.topic = r.topic), r.topic)) AS is_open
    FROM (
        SELECT d.id, d.name, d.args::jsonb AS args, coalesce(d.priority, 0) AS priority,
               coalesce($20, now()) + (d.place - 1) * interval '1 microsecond' AS due_at,
               coalesce(to_timestamp(d.expires_at), coalesce($20, now()) + d.expires_in_s * interval '1 second') AS expires_at,
               d.worker, d.traceparent, d.group_key,
               -- :include resolved_options
        FROM unnest($1::text::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::int[], $7::float8[], $8::float8[], $9::float8[],
                    $10::text[], $13::text[], $14::text[])
            WITH ORDINALITY AS d(id, name, args, topic, priority, max_attempts, timeout_s, expires_at, expires_in_s, worker, traceparent,
                                 group_key, place)
        -- :include option_sources
    ) AS r LEFT JOIN fence f ON true
    OFFSET 0  -- is_open is asked for six times: else each would look itself
) AS n
ORDER BY n.id
RETURNING uuid_send(id) AS id, attempts, name, topic, args::text AS args, timeout_s, priority,
    date_part('epoch', next_run_at) AS due_at, locked_by AS worker, traceparent, group_key;


-- name: submit_unique :many
-- What:    insert jobs with unique keys, or find those that have these keys.
-- Args:    $1 ids text to $14 now as for submit_jobs, $15 keys text[], $16 until when text[], $17 on_conflict text[] (NULL elements:
--          end, skip)
-- Guard:   idx_jobs_unique, in pulse.insert_unique; in the order of keys: two servers that get the same keys in another order wait for
--          each other, but never in a circle. Of two with the same key in one call the second finds the first.
-- Returns: of each job its place (from 1), its id or the id of the job that has its key; where that waits, if it is new or was
--          replaced, and when it is due (Unix seconds; NULL: later).
SELECT n.place::int AS place, uuid_send(u.job_id) AS id, u.level_topic AS topic, u.level_priority AS priority,
    CASE WHEN u.due_at <= coalesce($14, now()) + interval '1 second' THEN date_part('epoch', u.due_at) END AS due_s,
    u.level_group AS group_key
FROM (
    SELECT d.*, coalesce(to_timestamp(d.run_at), coalesce($14, now()) + coalesce(d.delay_s, 0) * interval '1 second')
               + (d.place - 1) * interval '1 microsecond' AS next_run_at,
           coalesce(to_timestamp(d.expires_at), coalesce($14, now()) + d.expires_in_s * interval '1 second') AS expiry,
           o.topic AS own_topic, o.max_attempts AS most_attempts, o.timeout_s AS longest_s
    FROM unnest($1::text::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::float8[], $7::float8[], $8::int[], $9::float8[],
                $10::float8[], $11::float8[], $12::text[], $13::text[], $15::text[], $16::text[], $17::text[])
        WITH ORDINALITY AS d(id, name, args, topic, priority, run_at, delay_s, max_attempts, timeout_s, expires_at, expires_in_s,
                             traceparent, group_key, unique_key, unique_until, on_conflict, place)
    CROSS JOIN LATERAL pulse.resolved_options(d.name, d.topic, d.max_attempts, d.timeout_s) AS o
    ORDER BY d.unique_key, d.place
) AS n
CROSS JOIN LATERAL pulse.insert_unique(n.id, n.name, n.own_topic, n.args::jsonb, coalesce(n.priority, 0), n.next_run_at, n.most_attempts,
    n.longest_s, n.expiry, n.traceparent, n.group_key, n.unique_key, n.unique_until, n.on_conflict) AS u;


-- name: hold_jobs :many
-- What:    let jobs that this transaction has inserted wait for others.
-- Args:    $1 ids uuid[], $2 how many others each waits for int[]
-- Guard:   status, attempts, waiting_on: one that has begun, or waits already, is left alone.   Returns: id.
UPDATE pulse.jobs j
SET waiting_on = n.parents, run_after = j.next_run_at, next_run_at = '9999-12-30 00:00+00'
FROM unnest($1::uuid[], $2::int[]) AS n(id, parents)
WHERE j.id BETWEEN n.id AND n.id AND j.status::text = 'PENDING' AND j.attempts = 0 AND j.waiting_on IS NULL
RETURNING uuid_send(j.id) AS id;


-- name: add_dependencies :exec
-- What:    which others these are; of those that have ended, settle that.
-- Args:    $1 children uuid[], $2 parents uuid[], $3 on_failure text[] (NULL: cancel): one element for each pair
-- Guard:   pulse.add_dependencies: all parents are there, and were submitted before.   Returns: nothing.
SELECT pulse.add_dependencies($1, $2, $3);


-- name: submitted_differently :many
-- What:    which of these ids hold another job than the one submitted, or none.
-- Args:    $1 ids text, $2 names text[], $3 args text[], $4 topics text[] (NULL elements: resolve)
-- Guard:   none: reads.
-- Returns: ids whose row has another name, topic or args, or is_missing. Other options, such as the group, are not compared, nor are
--          encrypted args: each encryption of the same args has another text.
SELECT d.id, j.id IS NULL AS is_missing
FROM unnest($1::text::uuid[], $2::text[], $3::text[], $4::text[]) AS d(id, name, args, topic)
LEFT JOIN pulse.handlers h ON h.name = d.name
LEFT JOIN pulse.jobs j ON j.id = d.id
WHERE j.id IS NULL OR j.name <> d.name OR j.topic <> coalesce(d.topic, h.topic, 'default')
   OR j.args <> d.args::jsonb AND NOT (j.args ? '$pulse' AND d.args::jsonb ? '$pulse');
