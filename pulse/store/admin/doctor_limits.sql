-- What `pulse doctor` asks about limits and groups.


-- fragment: waits_in_group
-- What:    whether a job j of a group waits, as idx_jobs_groups has it.
j.group_key IS NOT NULL AND j.status IN ('PENDING', 'RETRYING')
AND CASE WHEN j.status IN ('PENDING', 'RETRYING') THEN 0 WHEN j.status = 'RUNNING' THEN 1 ELSE 2 END = 0


-- fragment: group_heads
-- What:    the first job of each group, by a loose index scan: of 100 groups of a topic, by their keys.
head AS (
    (SELECT j.topic, j.group_key, j.id, greatest(j.next_run_at, j.run_after) AS due_at, 1 AS place FROM pulse.jobs j WHERE
         -- :include waits_in_group
     ORDER BY j.topic, j.group_key, j.priority DESC, j.next_run_at LIMIT 1)
    UNION ALL
    SELECT n.* FROM head h CROSS JOIN LATERAL (
        (SELECT j.topic, j.group_key, j.id, greatest(j.next_run_at, j.run_after), h.place + 1 FROM pulse.jobs j
         WHERE h.place < 100 AND j.topic = h.topic AND j.group_key > h.group_key AND
             -- :include waits_in_group
         ORDER BY j.group_key, j.priority DESC, j.next_run_at LIMIT 1)
        UNION ALL
        (SELECT j.topic, j.group_key, j.id, greatest(j.next_run_at, j.run_after), 1 FROM pulse.jobs j WHERE j.topic > h.topic AND
             -- :include waits_in_group
         ORDER BY j.topic, j.group_key, j.priority DESC, j.next_run_at LIMIT 1)
        LIMIT 1) AS n
)


-- name: queue_groups :many
-- What:    sequences that a dead letter halts while jobs wait behind it, and the groups whose first job has been due for longest.
-- Args:    none.   Guard: none: reads; 5000 groups that wait, 1000 that have dead letters.
-- Returns: topic, group_key, limit (NULL: none), job (that waits), due_s, dead_letter (NULL: it is not halted); those that are halted first.
WITH RECURSIVE halting AS (
    SELECT t.topic, d.name FROM pulse.limits d JOIN pulse.topics t ON t.limit_name = d.name WHERE d.group_key = '*' AND d.sequence = 'halt'
    UNION ALL
    SELECT d.name, d.name FROM pulse.limits d
    WHERE d.group_key = '*' AND d.sequence = 'halt'
      AND NOT EXISTS (SELECT FROM pulse.topics t WHERE t.topic = d.name AND t.limit_name IS NOT NULL)
), dead AS (
    SELECT h.topic, h.name, ''::text AS group_key, NULL::uuid AS id FROM halting h
    UNION ALL
    SELECT d.topic, d.name, n.group_key, n.id FROM dead d CROSS JOIN LATERAL (
        SELECT j.group_key, j.id FROM pulse.jobs j
        WHERE j.topic = d.topic AND j.group_key > d.group_key AND j.status = 'DEAD_LETTERED'
          AND CASE WHEN j.status IN ('PENDING', 'RETRYING') THEN 0 WHEN j.status = 'RUNNING' THEN 1 ELSE 2 END = 2
        ORDER BY j.group_key, j.priority DESC, j.next_run_at LIMIT 1) AS n
), halted AS MATERIALIZED (
    SELECT d.topic, d.group_key, d.name, d.id AS dead_letter, w.id, w.next_run_at AS due_at
    FROM (SELECT dead.* FROM dead LIMIT 1000) AS d CROSS JOIN LATERAL (
        SELECT j.id, j.next_run_at FROM pulse.jobs j WHERE j.topic = d.topic AND j.group_key = d.group_key AND
            -- :include waits_in_group
        ORDER BY j.priority DESC, j.next_run_at LIMIT 1) AS w
    WHERE d.id IS NOT NULL
),
-- :include group_heads
(SELECT h.topic, h.group_key, h.name AS limit, h.id::text AS job, extract(epoch FROM clock_timestamp() - h.due_at)::float8 AS due_s,
        h.dead_letter::text AS dead_letter FROM halted h ORDER BY h.due_at, h.topic, h.group_key LIMIT 100)
UNION ALL
(SELECT h.topic, h.group_key, x.name, h.id::text, extract(epoch FROM clock_timestamp() - h.due_at)::float8, NULL
 FROM (SELECT head.* FROM head LIMIT 5000) AS h
 LEFT JOIN pulse.topics t ON t.topic = h.topic
 LEFT JOIN pulse.limits x ON x.name = coalesce(t.limit_name, h.topic) AND x.group_key = ''
 LEFT JOIN pulse.limits o ON o.name = x.name AND o.group_key = h.group_key
 WHERE h.due_at <= clock_timestamp() AND o.concurrency IS DISTINCT FROM 0
   AND NOT EXISTS (SELECT FROM halted a WHERE a.topic = h.topic AND a.group_key = h.group_key)
   AND NOT EXISTS (SELECT FROM pulse.dispatch_control g
                   WHERE g.topic IN ('', h.topic) AND g.paused AND (g.paused_until IS NULL OR g.paused_until > clock_timestamp()))
 ORDER BY h.due_at, h.topic, h.group_key LIMIT 10);


-- name: queue_limits :many
-- What:    limits that limit nothing: no topic goes by them, or they ask for a sequence of jobs that have no groups.
-- Args:    none.   Guard: none: reads; of each limit 100 topics.
-- Returns: name, is_used, ungrouped (a topic that goes by a sequence, whose jobs have no groups; NULL: none).
SELECT x.name, u.is_used, (
    SELECT t.topic FROM (
        SELECT p.topic FROM pulse.topics p WHERE p.limit_name = x.name
        UNION ALL SELECT x.name WHERE l.is_own
        ORDER BY 1 LIMIT 100) AS t
    WHERE d.sequence IS NOT NULL
      AND EXISTS (SELECT FROM pulse.jobs j WHERE j.topic = t.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING'))
      AND NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.topic = t.topic AND
                          -- :include waits_in_group
                     )
    ORDER BY t.topic LIMIT 1) AS ungrouped
FROM pulse.limits x
LEFT JOIN pulse.limits d ON d.name = x.name AND d.group_key = '*'
CROSS JOIN LATERAL (
    SELECT NOT EXISTS (SELECT FROM pulse.topics p WHERE p.topic = x.name AND p.limit_name IS NOT NULL) AS is_own) AS l
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM pulse.topics p WHERE p.limit_name = x.name)
        OR EXISTS (SELECT FROM pulse.jobs j WHERE j.counted_by = x.name AND j.status = 'RUNNING')
        OR (l.is_own AND (
            EXISTS (SELECT FROM pulse.topics p WHERE p.topic = x.name)
            OR EXISTS (SELECT FROM pulse.handlers h WHERE coalesce(h.topic, 'default') = x.name)
            OR EXISTS (SELECT FROM pulse.jobs j WHERE j.topic = x.name AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING'))
            OR EXISTS (SELECT FROM pulse.jobs j WHERE j.topic = x.name AND
                           -- :include waits_in_group
                      ))) AS is_used) AS u
WHERE x.group_key = '' ORDER BY x.name LIMIT 1000;
