-- Limits and groups as people see them: which limits are full, and what waits in the groups of a topic.


-- name: limit_usage :many
-- What:    the slots of each limit, and the topics that go by it; those with the most slots taken first.
-- Args:    $1 limits int: most to list, $2 slots int: most to count where nothing limits them, $3 topics int: most to list of each, $4 now
-- Guard:   none: reads. A slot is counted for one limit only.
-- Returns: name, concurrency (NULL: any), running, retry_s (until the next token; NULL: there is one, or no rate), topics text[], omitted: how
--          many more limits there are.
WITH counted AS MATERIALIZED (
    SELECT x.name, x.concurrency, (
        SELECT count(*) FROM (
            SELECT FROM pulse.jobs j WHERE j.counted_by = x.name AND j.status = 'RUNNING'
            AND j.started_at >= coalesce(x.oldest_at, '-infinity') LIMIT greatest(x.concurrency, $2)) AS n)::int AS running,
        least(coalesce(x.burst, greatest(ceil(x.rate), 1))::float8,
              x.tokens + greatest(extract(epoch FROM coalesce($4, clock_timestamp()) - x.tokens_at)::float8, 0) * x.rate) AS tokens, x.rate
    FROM pulse.limits x WHERE x.group_key = ''
)
SELECT c.name, c.concurrency, c.running, CASE WHEN c.tokens < 1 THEN (1 - c.tokens) / c.rate END AS retry_s,
    ARRAY(SELECT t.topic FROM (
        SELECT p.topic FROM pulse.topics p WHERE p.limit_name = c.name
        UNION SELECT c.name WHERE NOT EXISTS (SELECT FROM pulse.topics p WHERE p.topic = c.name AND p.limit_name IS NOT NULL)) AS t
    ORDER BY t.topic LIMIT $3) AS topics,
    (SELECT greatest(count(*) - $1, 0)::int FROM counted) AS omitted
FROM counted c ORDER BY c.running >= c.concurrency DESC NULLS LAST, c.running DESC, c.name LIMIT $1;


-- name: topic_groups :many
-- What:    the groups of a topic with the most jobs that are due, found by a loose index scan.
-- Args:    $1 topic, $2 groups int: most to look at, $3 rows int: most jobs to look at in each of these, $4 limit int: most to list,
--          $5 rows int: most jobs to count of those, $6 now
-- Guard:   none: reads. Bounded by $2 * $3 and $4 * $5 jobs.
-- Returns: group_key, ready (due), later (due later), oldest_s (since when the first job counted is due; NULL: none), running, concurrency
--          (NULL: any), halted_by (the dead letter that halts its sequence), found: how many groups were looked at. The hottest first.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($6, clock_timestamp()) AS at
), found AS (
    SELECT ''::text AS group_key, 0 AS place
    UNION ALL
    SELECT n.group_key, f.place + 1
    FROM found f CROSS JOIN LATERAL (
        SELECT j.group_key FROM pulse.jobs j WHERE j.topic = $1 AND j.group_key > f.group_key AND
            -- :include waits_in_group
        ORDER BY j.group_key LIMIT 1) AS n
    WHERE f.place < $2
), hottest AS MATERIALIZED (
    SELECT f.group_key FROM found f CROSS JOIN clock c CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE n.due_at <= c.at) AS ready, count(*) AS waiting, min(n.due_at) AS oldest_at FROM (
            SELECT greatest(j.next_run_at, j.run_after) AS due_at FROM pulse.jobs j WHERE j.topic = $1 AND j.group_key = f.group_key AND
                -- :include waits_in_group
            LIMIT $3) AS n) AS w
    WHERE f.place > 0 ORDER BY w.ready DESC, w.waiting DESC, w.oldest_at, f.group_key LIMIT $4
), policy AS MATERIALIZED (
    SELECT x.name, d.sequence, d.concurrency FROM (SELECT coalesce((SELECT p.limit_name FROM pulse.topics p WHERE p.topic = $1), $1) AS name) AS l
    JOIN pulse.limits x ON x.name = l.name AND x.group_key = ''
    LEFT JOIN pulse.limits d ON d.name = l.name AND d.group_key = '*'
)
SELECT h.group_key, w.ready, w.later, extract(epoch FROM c.at - w.oldest_at)::float8 AS oldest_s, (
        SELECT count(*) FROM (
            SELECT FROM pulse.jobs j WHERE j.topic = $1 AND j.group_key = h.group_key AND j.status = 'RUNNING' AND
            -- :include part_of_groups
            = 1 LIMIT $5) AS n) AS running,
    least(CASE WHEN l.sequence IS NOT NULL THEN 1 END, coalesce(o.concurrency, l.concurrency)) AS concurrency, (
        SELECT uuid_send(j.id) FROM pulse.jobs j
        WHERE l.sequence = 'halt' AND j.topic = $1 AND j.group_key = h.group_key AND j.status = 'DEAD_LETTERED' AND
        -- :include part_of_groups
        = 2 ORDER BY j.priority DESC, j.next_run_at LIMIT 1) AS halted_by,
    (SELECT count(*)::int - 1 FROM found) AS found
FROM hottest h CROSS JOIN clock c CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE n.due_at <= c.at) AS ready, count(*) FILTER (WHERE n.due_at > c.at) AS later,
           min(n.due_at) FILTER (WHERE n.due_at <= c.at) AS oldest_at FROM (
        SELECT greatest(j.next_run_at, j.run_after) AS due_at FROM pulse.jobs j WHERE j.topic = $1 AND j.group_key = h.group_key AND
            -- :include waits_in_group
        LIMIT $5) AS n) AS w
LEFT JOIN policy l ON true
LEFT JOIN LATERAL (SELECT q.* FROM pulse.limits q WHERE q.name = l.name AND q.group_key = h.group_key LIMIT 1) AS o ON true
ORDER BY w.ready DESC, w.later DESC, w.oldest_at, h.group_key;
