-- Claiming due jobs, and finding where they are.


-- name: claim_jobs :many
-- What:    hand out due jobs, highest priority first, then by due time; opens their leases.   From/to: PENDING, RETRYING -> RUNNING
-- Args:    $1 topics text[] of a full claim (in the order in which equal priorities are served), $2 limit int, $3 workers text[],
--          $4 seats int[] (for the n-th job: index into workers; beyond its end: 1), $5 lease_s float8,
--          $6 level topics text[], $7 level priorities smallint[], $8 from when float8[] (Unix; NULL: what became due
--          in the last 5 s; same length, in the order in which levels are served) where it is none; $9 ageing_s float8[] (of
--          the topics of $1 or $6: seconds of waiting that are worth one priority, NULL: strict; $9 NULL: none of them
--          ages), $10 witness uuid, $11 its counter bigint, $12 epoch int, $13 start of the server timestamptz, $14 table oid (of
--          fence; $10 NULL: no dispatcher asks), $15 ids uuid[]: these alone, also where they are set aside (NULL: any that is not), $16 now
-- Guard:   the fence: it is the same database, it has all that this dispatcher has seen of it, and no newer epoch has begun.
--          Else nothing is claimed. Topics with a limit and jobs of groups are for claim_limited. The gate, until the time at which a pause ends; status IN ('PENDING', 'RETRYING'), due, not expired
--          and not set aside, under SKIP LOCKED, and status again in the outer UPDATE (a row that changed between the two is not claimed twice).
-- Returns: the claimed jobs. Each level (topic, priority) is a range scan that ends at now: what is not due is never read.
--          It begins where the caller says that it claimed last, so it does not meet the dead entries before; a full claim
--          begins at the start, and finds the levels by a loose index scan.
--          LIMIT outside the LATERAL stops it before the next level is touched.
--          Where topics age, a job ranks by its priority plus what its waiting is worth. Within a level that is the order of
--          due times, so the levels are merged: at most as many jobs from each as there are seats, and from the other levels
--          none that ranks below the last job with which the best level alone would fill the seats. No row is rewritten for it.
--          A job that may be older than the newest epoch gets an attempt number above all earlier ones; the skipped numbers are uncharged.
--          Expiry is compared with a clock that is read with the first rows, not when the statement was sent: it may have
--          waited for a lock on the table since. That moment is started_at, so no job starts after it has expired.
--          A claim ends after 8 MiB of args, checkpoints, and the errors and progress of the attempts before: the result must fit
--          into memory and a socket. Short args are not measured: uncompressed, their text is not much longer than 2000 bytes.
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
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = o.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM open o
    UNION ALL
    SELECT l.topic, l.age_s, l.place, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
        AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
    FROM found l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT v.* FROM (
        SELECT f.topic, f.priority, '-infinity'::timestamptz AS from_at, f.age_s, f.place FROM found f WHERE f.priority IS NOT NULL
        UNION ALL
        SELECT k.topic, k.priority, coalesce(to_timestamp(k.from_s), coalesce($16, now()) - interval '5 seconds'), k.age_s, k.place
        FROM unnest($6::text[], $7::smallint[], $8::float8[], $9::float8[]) WITH ORDINALITY AS k(topic, priority, from_s, age_s, place)
        WHERE NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', k.topic)
                            AND coalesce(g.paused_until > coalesce($16, now()), true))
        OFFSET 0) AS v
    WHERE NOT EXISTS (SELECT FROM pulse.limits x WHERE x.group_key = '' AND x.name = coalesce(
                          (SELECT p.limit_name FROM pulse.topics p WHERE p.topic = v.topic), v.topic))
), ranked AS MATERIALIZED (
    SELECT w.*, w.priority + coalesce(extract(epoch FROM coalesce($16, now()) - h.next_run_at)::float8 / w.age_s, 0) AS rank
    FROM levels w
    CROSS JOIN LATERAL (
        SELECT q.next_run_at FROM pulse.jobs q
        WHERE q.topic = w.topic AND q.priority = w.priority AND q.group_key IS NULL AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= w.from_at AND q.next_run_at <= coalesce($16, now())
        ORDER BY q.next_run_at LIMIT 1) AS h
    WHERE $9::float8[] IS NOT NULL
), bar AS MATERIALIZED (
    SELECT b.priority + coalesce(extract(epoch FROM coalesce($16, now()) - n.next_run_at)::float8 / b.age_s, 0) AS rank
    FROM (SELECT * FROM ranked ORDER BY rank DESC, place LIMIT 1) AS b
    CROSS JOIN LATERAL (
        SELECT q.next_run_at FROM pulse.jobs q
        WHERE q.topic = b.topic AND q.priority = b.priority AND q.group_key IS NULL AND q.status IN ('PENDING', 'RETRYING')
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
               -- :include claim_size
               AS size
        FROM pulse.jobs j
        WHERE j.topic = l.topic AND j.priority = l.priority AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
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
        WHERE q.topic = c.topic AND q.priority = c.priority AND q.group_key IS NULL AND q.status IN ('PENDING', 'RETRYING')
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
    progress = NULL, counted_by = NULL
FROM seated s
WHERE j.id BETWEEN s.id AND s.id AND j.status::text IN ('PENDING', 'RETRYING') AND s.before_bytes < 8388608
RETURNING uuid_send(j.id) AS id, j.attempts, j.name, j.topic, j.args::text AS args, j.timeout_s, j.priority,
    date_part('epoch', j.next_run_at) AS due_at, coalesce(($4::int[])[s.seat], 1) - 1 AS worker,
    -- :include claimed_history
;


-- name: find_levels :many
-- What:    the next levels (topic, priority) that have waiting jobs without a group, by a loose index scan: two descents for each.
-- Args:    $1 topic, $2 priority smallint: the level to begin after, $3 limit int, $4 topics text[]: these alone, each after that
--          priority, and so many levels of each (NULL: all), $5 now.   Guard: none: reads.
-- Returns: topic, priority, when its first job is due (Unix seconds), and whether it is due now.
WITH RECURSIVE levels AS (
    SELECT t.topic, $2::smallint AS priority, NULL::timestamptz AS next_run_at, 0 AS place
    FROM unnest(coalesce($4::text[], ARRAY[$1::text])) AS t(topic)
    UNION ALL
    SELECT f.topic, f.priority, f.next_run_at, l.place + 1
    FROM levels l
    CROSS JOIN LATERAL (
        SELECT n.* FROM (
            (SELECT j.topic, j.priority, j.next_run_at FROM pulse.jobs j
             WHERE j.topic = l.topic AND j.priority < l.priority AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
             ORDER BY j.priority DESC, j.next_run_at LIMIT 1)
            UNION ALL
            (SELECT j.topic, j.priority, j.next_run_at FROM pulse.jobs j
             WHERE $4 IS NULL AND j.topic > l.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
             ORDER BY j.topic, j.priority DESC, j.next_run_at LIMIT 1)
        ) AS n LIMIT 1
    ) AS f
    WHERE l.place < $3
)
SELECT topic, priority, date_part('epoch', next_run_at) AS due_at, next_run_at <= coalesce($5, now()) AS is_due
FROM levels WHERE place > 0 ORDER BY place;


-- fragment: claimed_history
-- What:    the columns of a claimed job j that tell of its attempts before.
j.uncharged, j.crashes, date_part('epoch', j.occurrence) AS occurrence_at, j.checkpoint::text AS checkpoint,
CASE WHEN j.attempts > 1 THEN (
    SELECT jsonb_build_array(a.outcome, a.error, a.worker, a.progress::text)::text
    FROM pulse.attempts a WHERE a.job_id = j.id AND a.attempt < j.attempts ORDER BY a.attempt DESC LIMIT 1) END AS previous,
CASE WHEN octet_length(j.traceparent) <= 55 THEN j.traceparent END AS traceparent


-- fragment: part_of_groups
-- What:    which part of idx_jobs_groups holds a job j of a group, exactly as the index has it: 0 waits, 1 runs, 2 is a dead letter.
--          All four statuses, where one would do: else, with statistics of another day, the planner takes an index of all that run,
--          or of all dead letters, and reads it once for each group.
j.status IN ('PENDING', 'RETRYING', 'RUNNING', 'DEAD_LETTERED') AND
CASE WHEN j.status IN ('PENDING', 'RETRYING') THEN 0 WHEN j.status = 'RUNNING' THEN 1 ELSE 2 END


-- fragment: waits_in_group
-- What:    whether a job j of a group waits.
j.group_key IS NOT NULL AND
-- :include part_of_groups
= 0


-- fragment: may_start
-- What:    whether a waiting job j has not expired and is not set aside; $16 as in claim_jobs. Its due time is not looked at here.
(j.expires_at IS NULL OR j.expires_at > (SELECT c.at FROM clock c))
AND CASE WHEN $16::uuid[] IS NULL THEN j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s)) ELSE j.id = ANY ($16) END


-- fragment: claim_size
-- What:    bytes of a job j that a claim returns, as in claim_jobs.
CASE WHEN pg_column_size(j.args) > 2000 OR pg_column_compression(j.args) IS NOT NULL
     THEN octet_length(j.args::text) ELSE 2000 END + coalesce(octet_length(j.checkpoint::text), 0)
+ coalesce(octet_length(to_json(j.last_error)::text), 0) + coalesce(octet_length(j.progress::text), 0)


-- fragment: counted_from
-- What:    whether a job j runs and comes in the order of idx_jobs_counted not before the pair that follows. A pair, and that order: where
--          the planner believes that nothing runs, an index of all that runs costs the same, but that is in another order.
j.status = 'RUNNING' AND (j.counted_by, j.started_at) >=


-- name: claim_limited :many
-- What:    as claim_jobs, where topics have limits or jobs have groups, of levels that are named.   From/to: PENDING, RETRYING -> RUNNING
-- Args:    $1 topics text[], $2 groups text[] (NULL: jobs without one), $3 priorities smallint[], $4 from when float8[] (Unix; NULL:
--          what became due in the last 5 s; these four of the same length, in the order in which levels are served), $5 limit int,
--          $6 workers text[], $7 seats int[], $8 lease_s float8 (as in claim_jobs), $9 most int: jobs of one level of a group, so that
--          groups take turns (NULL: any), $10 ageing_s float8[] (of each level; NULL: none ages), $11 witness uuid, $12 its counter
--          bigint, $13 epoch int, $14 start of the server timestamptz, $15 table oid (of the fence), $16 ids uuid[] (as $15 there), $17 now
-- Guard:   as claim_jobs. A limit is claimed under by one at a time: its row is locked, under SKIP LOCKED, and its number of claims must
--          be that of this statement's snapshot. Else another claim has committed since, whose RUNNING rows this one may not see:
--          then it takes nothing there. What else ends meanwhile can only leave fewer RUNNING. Each start takes a token.
--          Of a sequence its head alone is claimed, if no other job of the group runs; and none if a dead letter halts it.
-- Returns: as claim_jobs, and group_key; and, with an id of NULL, each level of which nothing could be claimed, with verdict: full (no slot
--          until a job ends, or a dead letter halts the group), rate (retry_s: until the next token), busy (another claims);
--          of_limit: it is so for all that goes by the limit, not for this group alone.
--          Groups take turns, each by its best job, in the order of the levels; among jobs of other topics a turn ranks as its best job.
--          Jobs without a group are one group. Ageing counts inside a group, as in claim_jobs, but not in a sequence. Where nothing
--          ages, levels without a group are read until there are twice as many jobs as seats: some may have no slot.
WITH clock AS MATERIALIZED (
    SELECT coalesce($17::timestamptz, clock_timestamp()) AS at
), fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM (SELECT n.* FROM pulse.epochs n ORDER BY n.epoch DESC LIMIT 1) AS e
    WHERE ($11::uuid IS NULL OR (e.epoch = $13 AND pg_postmaster_start_time() = $14 AND EXISTS (
          SELECT FROM pulse.witnesses w WHERE w.instance = $11 AND w.counter >= $12 AND w.tableoid = $15)))
), levels AS MATERIALIZED (
    SELECT k.topic, k.group_key, k.priority, coalesce(to_timestamp(k.from_s), coalesce($17, now()) - interval '5 seconds') AS from_at,
           k.age_s, k.place
    FROM fence f CROSS JOIN unnest($1::text[], $2::text[], $3::smallint[], $4::float8[], $10::float8[])
        WITH ORDINALITY AS k(topic, group_key, priority, from_s, age_s, place)
    WHERE NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', k.topic)
                        AND coalesce(g.paused_until > coalesce($17, now()), true))
), seen AS MATERIALIZED (
    SELECT t.topic, x.name, x.claims, coalesce(d.sequence, '') AS sequence, d.concurrency AS each_concurrency, d.rate AS each_rate,
           d.burst AS each_burst
    FROM (SELECT DISTINCT l.topic FROM levels l) AS t
    LEFT JOIN LATERAL (SELECT p.limit_name FROM pulse.topics p WHERE p.topic = t.topic LIMIT 1) AS p ON true
    LEFT JOIN LATERAL (SELECT q.name, q.claims FROM pulse.limits q
                       WHERE q.name = coalesce(p.limit_name, t.topic) AND q.group_key = '' LIMIT 1) AS x ON true
    LEFT JOIN LATERAL (SELECT q.* FROM pulse.limits q WHERE q.name = x.name AND q.group_key = '*' LIMIT 1) AS d ON true
), mine AS MATERIALIZED (
    SELECT x.name, x.claims, x.concurrency, x.rate, coalesce(x.burst, greatest(ceil(x.rate), 1))::float8 AS burst, x.tokens, x.tokens_at,
           x.oldest_at
    FROM pulse.limits x
    WHERE x.group_key = '' AND x.name = ANY (ARRAY(SELECT DISTINCT s.name FROM seen s WHERE s.name IS NOT NULL))
    ORDER BY x.name FOR UPDATE SKIP LOCKED
), topics AS MATERIALIZED (
    SELECT s.*, s.name IS NOT NULL AND m.name IS NULL AS is_busy, m.rate,
           CASE WHEN m.rate IS NOT NULL THEN least(m.burst, coalesce(
               m.tokens + greatest(extract(epoch FROM c.at - m.tokens_at)::float8, 0) * m.rate, m.burst)) END AS tokens,
           CASE WHEN m.concurrency IS NOT NULL THEN greatest(m.concurrency - (
               SELECT count(*) FROM (
                   SELECT FROM pulse.jobs j WHERE
                   -- :include counted_from
                   (s.name, coalesce(m.oldest_at, '-infinity')) AND j.counted_by <= s.name
                   ORDER BY j.counted_by, j.started_at LIMIT m.concurrency) AS o)::int, 0) END AS slots
    FROM clock c, seen s LEFT JOIN mine m ON m.name = s.name AND m.claims = s.claims
), groups AS MATERIALIZED (
    SELECT l.*, t.name, t.is_busy, t.slots AS limit_slots, t.tokens AS limit_tokens, t.rate AS limit_rate, t.sequence, w.rate,
           CASE WHEN w.rate IS NOT NULL THEN least(w.burst, coalesce(
               o.tokens + greatest(extract(epoch FROM (SELECT c.at FROM clock c) - o.tokens_at)::float8, 0) * w.rate, w.burst)) END AS tokens,
           CASE WHEN t.sequence = 'halt' AND EXISTS (
                    SELECT FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key = l.group_key AND
                    -- :include part_of_groups
                    = 2) THEN 0
                WHEN w.most IS NOT NULL THEN greatest(w.most - (
                    SELECT count(*) FROM (
                        SELECT FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key = l.group_key AND
                        -- :include part_of_groups
                        = 1 LIMIT w.most) AS n)::int, 0) END AS slots
    FROM levels l
    JOIN topics t ON t.topic = l.topic
    LEFT JOIN LATERAL (
        SELECT q.* FROM pulse.limits q WHERE q.name = t.name AND q.group_key = l.group_key AND NOT t.is_busy LIMIT 1) AS o ON true
    CROSS JOIN LATERAL (
        SELECT e.*, coalesce(CASE WHEN o.rate IS NOT NULL THEN o.burst ELSE t.each_burst END, greatest(ceil(e.rate), 1))::float8 AS burst
        FROM (SELECT coalesce(o.rate, t.each_rate) AS rate,
                     least(CASE WHEN t.sequence <> '' THEN 1 END, coalesce(o.concurrency, t.each_concurrency)) AS most
              WHERE l.group_key IS NOT NULL AND NOT t.is_busy
              UNION ALL SELECT NULL, NULL WHERE l.group_key IS NULL OR t.is_busy) AS e) AS w
), open AS MATERIALIZED (
    SELECT g.*, least(g.slots, floor(g.tokens), CASE WHEN g.group_key IS NOT NULL THEN $9::int END, g.limit_slots, floor(g.limit_tokens),
                      $5::int)::int AS most
    FROM groups g
    WHERE NOT g.is_busy AND coalesce(least(g.slots, floor(g.tokens), g.limit_slots, floor(g.limit_tokens)) > 0, true)
), picked AS MATERIALIZED (
    (SELECT o.*, p.id, p.next_run_at, p.size, o.priority::float8 AS rank
    FROM (SELECT * FROM open WHERE group_key IS NULL AND $10::float8[] IS NULL ORDER BY priority DESC, place) AS o
    CROSS JOIN LATERAL (
        SELECT j.id, j.next_run_at,
               -- :include claim_size
               AS size
        FROM pulse.jobs j
        WHERE j.group_key IS NULL AND j.topic = o.topic AND j.priority = o.priority AND j.status IN ('PENDING', 'RETRYING')
          AND j.next_run_at >= o.from_at AND j.next_run_at <= coalesce($17, now()) AND
              -- :include may_start
        ORDER BY j.next_run_at LIMIT o.most FOR UPDATE SKIP LOCKED) AS p
    LIMIT $5::int * 2)
    UNION ALL
    SELECT o.*, p.id, p.next_run_at, p.size,
           p.priority + coalesce(extract(epoch FROM coalesce($17, now()) - p.next_run_at)::float8 / CASE o.sequence WHEN '' THEN o.age_s END, 0)
    FROM open o
    CROSS JOIN LATERAL (
        SELECT f.* FROM (
            SELECT j.id, j.next_run_at, j.priority,
                   -- :include claim_size
                   AS size
            FROM pulse.jobs j
            WHERE o.group_key IS NULL AND $10::float8[] IS NOT NULL
              AND j.group_key IS NULL AND j.topic = o.topic AND j.priority = o.priority AND j.status IN ('PENDING', 'RETRYING')
              AND j.next_run_at >= o.from_at AND j.next_run_at <= coalesce($17, now()) AND
                  -- :include may_start
            ORDER BY j.next_run_at LIMIT o.most FOR UPDATE SKIP LOCKED) AS f
        UNION ALL
        SELECT f.* FROM (
            SELECT j.id, j.next_run_at, j.priority,
                   -- :include claim_size
                   AS size
            FROM pulse.jobs j
            WHERE o.sequence = '' AND j.topic = o.topic AND j.group_key = o.group_key AND j.priority = o.priority AND
                  -- :include waits_in_group
              AND j.next_run_at >= o.from_at AND j.next_run_at <= coalesce($17, now())
              AND (j.run_after IS NULL OR j.run_after <= coalesce($17, now())) AND
                  -- :include may_start
            ORDER BY j.next_run_at LIMIT o.most FOR UPDATE SKIP LOCKED) AS f
        UNION ALL
        SELECT f.* FROM (
            SELECT j.id, j.priority, j.next_run_at FROM pulse.jobs j
            WHERE o.sequence <> '' AND j.topic = o.topic AND j.group_key = o.group_key AND
                  -- :include waits_in_group
              AND j.next_run_at <= coalesce($17, now())
            ORDER BY j.priority DESC, j.next_run_at, j.id LIMIT 1) AS h
        CROSS JOIN LATERAL (
            SELECT j.id, j.next_run_at, j.priority,
                   -- :include claim_size
                   AS size
            FROM pulse.jobs j
            WHERE j.id BETWEEN h.id AND h.id AND j.status::text IN ('PENDING', 'RETRYING')
              AND j.priority = h.priority AND j.next_run_at = h.next_run_at
              AND (j.run_after IS NULL OR j.run_after <= coalesce($17, now())) AND
                  -- :include may_start
            FOR UPDATE SKIP LOCKED) AS f) AS p
    WHERE o.group_key IS NOT NULL OR $10::float8[] IS NOT NULL
), ranked AS (
    SELECT p.*, coalesce(p.name, p.topic) AS pool,
           row_number() OVER (PARTITION BY coalesce(p.name, p.topic), p.group_key ORDER BY p.rank DESC, p.next_run_at, p.id) AS turn
    FROM picked p
), turns AS (
    SELECT r.*, max(r.rank) OVER (PARTITION BY r.pool, r.turn) AS turn_rank
    FROM ranked r WHERE r.turn <= coalesce(least(r.slots, floor(r.tokens)), r.turn)
), fit AS (
    SELECT t.*, row_number() OVER (PARTITION BY t.pool ORDER BY t.turn_rank DESC, t.turn, t.place, t.next_run_at, t.id) AS number
    FROM turns t
), seated AS (
    SELECT f.*, row_number() OVER seats AS seat, sum(f.size) OVER seats - f.size AS before_bytes
    FROM fit f WHERE f.number <= coalesce(least(f.limit_slots, floor(f.limit_tokens)), f.number)
    WINDOW seats AS (ORDER BY f.turn_rank DESC, f.turn, f.place, f.next_run_at, f.id)
), taken AS MATERIALIZED (
    SELECT s.*, CASE WHEN f.attempts_floor > 0 AND (s.id < f.first_id OR get_byte(uuid_send(s.id), 6) >> 4 <> 7
                                                    OR s.id >= '04000000-0000-0000-0000-000000000000')
                     THEN f.attempts_floor ELSE 0 END AS floor
    FROM fence f CROSS JOIN seated s WHERE s.seat <= $5::int AND s.before_bytes < 8388608
), spent AS (
    UPDATE pulse.limits x
    SET claims = x.claims + 1, tokens = n.tokens - n.jobs, tokens_at = CASE WHEN n.tokens IS NOT NULL THEN c.at END,
        oldest_at = CASE WHEN x.concurrency IS NOT NULL THEN least(c.at, (
            SELECT j.started_at FROM pulse.jobs j WHERE
            -- :include counted_from
            (x.name, coalesce(x.oldest_at, '-infinity')) AND j.counted_by <= x.name
            ORDER BY j.counted_by, j.started_at LIMIT 1)) END
    FROM clock c, (SELECT k.name, k.limit_tokens AS tokens, count(*) AS jobs FROM taken k WHERE k.name IS NOT NULL
                   GROUP BY k.name, k.limit_tokens) AS n
    WHERE x.name = n.name AND x.group_key = ''
), bucket AS (
    INSERT INTO pulse.limits AS x (name, group_key, tokens, tokens_at)
    SELECT k.name, k.group_key, k.tokens - count(*), (SELECT c.at FROM clock c)
    FROM taken k WHERE k.tokens IS NOT NULL GROUP BY k.name, k.group_key, k.tokens
    ON CONFLICT (name, group_key) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at
), claimed AS (
    UPDATE pulse.jobs j
    SET status = 'RUNNING', attempts = greatest(j.attempts, s.floor) + 1, uncharged = j.uncharged + greatest(s.floor - j.attempts, 0),
        locked_by = ($6::text[])[coalesce(($7::int[])[s.seat], 1)],
        started_at = (SELECT c.at FROM clock c), lease_until = coalesce($17, clock_timestamp()) + $8::float8 * interval '1 second',
        progress = NULL, counted_by = s.name, run_after = CASE WHEN s.sequence <> '' THEN (SELECT c.at FROM clock c) END
    FROM taken s
    WHERE j.id BETWEEN s.id AND s.id AND j.status::text IN ('PENDING', 'RETRYING')
    RETURNING uuid_send(j.id) AS id, j.attempts, j.name, j.topic, j.args::text AS args, j.timeout_s, j.priority,
        date_part('epoch', j.next_run_at) AS due_at, coalesce(($7::int[])[s.seat], 1) - 1 AS worker,
        -- :include claimed_history
        , j.group_key
)
SELECT c.*, NULL::text AS verdict, NULL::float8 AS retry_s, NULL::boolean AS of_limit FROM claimed c
UNION ALL
SELECT NULL, NULL, NULL, g.topic, NULL, NULL, g.priority, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, g.group_key,
    CASE WHEN g.is_busy THEN 'busy' WHEN least(g.slots, g.limit_slots) <= 0 THEN 'full' ELSE 'rate' END,
    CASE WHEN g.is_busy OR least(g.slots, g.limit_slots) <= 0 THEN NULL
         ELSE greatest((1 - g.tokens) / g.rate, (1 - g.limit_tokens) / g.limit_rate) END,
    g.is_busy OR coalesce(g.limit_slots <= 0, false) OR (coalesce(g.slots > 0, true) AND coalesce(g.limit_tokens < 1, false))
FROM groups g WHERE g.is_busy OR least(g.slots, floor(g.tokens), g.limit_slots, floor(g.limit_tokens)) <= 0;


-- name: find_group_levels :many
-- What:    the next levels of groups (topic, group, priority) that have waiting jobs, by a loose index scan: two descents for each.
-- Args:    $1 topic, $2 group, $3 priority smallint: the level to begin after, $4 limit int, $5 now.   Guard: none: reads.
-- Returns: topic, group_key, priority, when its first job is due (Unix seconds), whether it is due now, and whether its group has no
--          slot. Of the first job alone: in a sequence the others wait for it, also while it is put off.
WITH RECURSIVE levels AS (
    SELECT $1::text AS topic, $2::text AS group_key, $3::smallint AS priority, NULL::timestamptz AS due_at, 0 AS place
    UNION ALL
    SELECT f.topic, f.group_key, f.priority, greatest(f.next_run_at, f.run_after), l.place + 1
    FROM levels l
    CROSS JOIN LATERAL (
        SELECT n.* FROM (
            (SELECT j.topic, j.group_key, j.priority, j.next_run_at, j.run_after FROM pulse.jobs j
             WHERE j.topic = l.topic AND j.group_key = l.group_key AND j.priority < l.priority AND
                   -- :include waits_in_group
             ORDER BY j.priority DESC, j.next_run_at LIMIT 1)
            UNION ALL
            (SELECT j.topic, j.group_key, j.priority, j.next_run_at, j.run_after FROM pulse.jobs j
             WHERE (j.topic, j.group_key) > (l.topic, l.group_key) AND
                   -- :include waits_in_group
             ORDER BY j.topic, j.group_key, j.priority DESC, j.next_run_at LIMIT 1)
        ) AS n LIMIT 1
    ) AS f
    WHERE l.place < $4
)
SELECT l.topic, l.group_key, l.priority, date_part('epoch', l.due_at) AS due_at, l.due_at <= coalesce($5, now()) AS is_due,
    coalesce((d.sequence = 'halt' AND EXISTS (
        SELECT FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key = l.group_key AND
        -- :include part_of_groups
        = 2)) OR w.most <= (
        SELECT count(*) FROM (
            SELECT FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key = l.group_key AND
            -- :include part_of_groups
            = 1 LIMIT w.most) AS n), false) AS is_full
FROM levels l
LEFT JOIN LATERAL (SELECT p.limit_name FROM pulse.topics p WHERE p.topic = l.topic LIMIT 1) AS p ON true
LEFT JOIN LATERAL (SELECT q.* FROM pulse.limits q WHERE q.name = coalesce(p.limit_name, l.topic) AND q.group_key = '*' LIMIT 1) AS d ON true
LEFT JOIN LATERAL (
    SELECT q.* FROM pulse.limits q WHERE q.name = coalesce(p.limit_name, l.topic) AND q.group_key = l.group_key LIMIT 1) AS o ON true
CROSS JOIN LATERAL (
    SELECT least(CASE WHEN d.sequence IS NOT NULL THEN 1 END, coalesce(o.concurrency, d.concurrency)) AS most) AS w
WHERE l.place > 0 ORDER BY l.place;
