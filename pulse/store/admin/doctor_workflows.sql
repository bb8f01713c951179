-- What `pulse doctor` asks about workflows: jobs that wait for long, and ends that no broker gets.


-- fragment: wait_of_job
-- What:    of a job j that is put off for good: the signal that it waits for (NULL: it waits for jobs), and since when (NULL: it does not wait).
j.id, j.topic, j.name, CASE WHEN coalesce(j.waiting_on, 0) = 0 THEN j.awaited_signal END AS signal,
CASE WHEN j.waiting_on > 0 THEN greatest(j.submitted_at, j.started_at, j.run_after)
     WHEN j.awaited_signal IS NOT NULL THEN greatest(j.next_run_at, j.run_after) - interval '1000000000 s' END AS since


-- name: queue_waits :many
-- What:    jobs that have waited for more than a day for other jobs, or for a signal without a time limit. Those that wait for jobs which
--          are not due themselves are left out: such a parent sleeps, is scheduled, or is listed here.
--          pulse.settle and a wait without a limit (1e9 s) put jobs far off, where each level has them together.
-- Args:    none.   Guard: none: reads; 2000 jobs of each level, 10,000 in all.
-- Returns: topic, name, signal (NULL: they wait for jobs), jobs, age_s (of the oldest), job (that one); the oldest first.
WITH RECURSIVE
-- :include levels
,
-- :include group_heads
, group_level AS (
    SELECT h.topic, h.group_key, 101 AS priority FROM (SELECT head.topic, head.group_key FROM head LIMIT 5000) AS h
    UNION ALL
    SELECT g.topic, g.group_key, (
        SELECT j.priority::int FROM pulse.jobs j WHERE j.topic = g.topic AND j.group_key = g.group_key AND j.priority < g.priority AND
            -- :include waits_in_group
        ORDER BY j.priority DESC LIMIT 1)
    FROM group_level g WHERE g.priority IS NOT NULL
), span AS MATERIALIZED (
    SELECT clock_timestamp() + interval '20 years' AS low, clock_timestamp() + interval '1000000000 s' - interval '1 day' AS high
    UNION ALL
    SELECT '9999-12-30 00:00+00', '9999-12-30 00:00+00'
), waits AS MATERIALIZED (
    SELECT f.* FROM span s CROSS JOIN (SELECT level.topic, level.priority FROM level LIMIT 5000) AS l CROSS JOIN LATERAL (
        SELECT
            -- :include wait_of_job
        FROM pulse.jobs j
        WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') AND j.topic = l.topic AND j.priority = l.priority
          AND j.next_run_at BETWEEN s.low AND s.high ORDER BY j.next_run_at LIMIT 2000) AS f
    UNION ALL
    SELECT f.* FROM span s CROSS JOIN group_level g CROSS JOIN LATERAL (
        SELECT
            -- :include wait_of_job
        FROM pulse.jobs j
        WHERE j.topic = g.topic AND j.group_key = g.group_key AND j.priority = g.priority AND j.next_run_at BETWEEN s.low AND s.high AND
            -- :include waits_in_group
        ORDER BY j.next_run_at LIMIT 2000) AS f
    UNION ALL
    SELECT f.* FROM span s CROSS JOIN (SELECT head.id, head.due_at FROM head LIMIT 5000) AS h CROSS JOIN LATERAL (
        SELECT
            -- :include wait_of_job
        FROM pulse.jobs j WHERE j.id = h.id AND j.next_run_at < s.low LIMIT 1) AS f  -- of a sequence, which keeps its place
    WHERE h.due_at BETWEEN s.low AND s.high
    LIMIT 10000
)
SELECT w.topic, w.name, w.signal, count(*) AS jobs, extract(epoch FROM clock_timestamp() - min(w.since))::float8 AS age_s,
       (array_agg(w.id::text ORDER BY w.since))[1] AS job
FROM waits w
WHERE w.since < clock_timestamp() - interval '1 day' AND (
    SELECT p.id FROM pulse.dependencies d
    CROSS JOIN LATERAL (SELECT p.* FROM pulse.jobs p WHERE p.id = d.parent_id LIMIT 1) AS p
    WHERE d.child_id = w.id AND NOT d.is_over AND p.completed_at IS NULL
      AND greatest(p.next_run_at, p.run_after) > clock_timestamp() LIMIT 1) IS NULL
GROUP BY w.topic, w.name, w.signal ORDER BY 5 DESC, w.topic, w.name LIMIT 100;

-- name: queue_outbox :many
-- What:    ends of jobs that are in the outbox for more than ten minutes.
-- Args:    none.   Guard: none: reads; the oldest 10,000 by their index.
-- Returns: topic, ends, age_s (of the oldest), is_taken (whether a publisher had one of them in hand a minute ago); the oldest first.
SELECT o.topic, count(*) AS ends, extract(epoch FROM clock_timestamp() - min(o.ended_at))::float8 AS age_s,
       max(o.taken_until) > clock_timestamp() - interval '1 minute' AS is_taken
FROM (SELECT e.topic, e.ended_at, e.taken_until FROM pulse.outbox e
      WHERE e.ended_at < (SELECT clock_timestamp()) - interval '10 minutes' ORDER BY e.ended_at LIMIT 10000) AS o
GROUP BY o.topic ORDER BY 3 DESC, o.topic LIMIT 100;
