-- Why a job does not run.


-- name: why_job :one
-- What:    all facts in the database about why a job does not run, in one snapshot.
-- Args:    $1 id uuid, $2 limit int (most jobs to count), $3 the asking server's host, $4 now
-- Guard:   none: reads. The jobs before it are counted up to the limit: levels by two descents each, jobs by a range of the
--          claim index from its start, so that a million waiting jobs cost no more than a thousand.
-- Returns: the job, without args and result; whether it is set aside; its newest attempt, if that left a row; pauses; the schedule's
--          last job if this one is held back; its handler and the hosts; how many due jobs of its topic, or of its group if it has one,
--          come before it: of a higher priority, or due earlier at the same one; how many jobs it waits for (waiting_on), the first of them, and
--          how many of its parents have failed; the signal that it waits for. Of a job that waits, as claim_limited sees it: the slots
--          and tokens of its limit (limit_...) and of its group (group_...), with the first jobs that hold the slots; and what goes first in a
--          sequence (ahead_...), or halts it (halted_by). next_run_at: of a job of a sequence the time until which it is put off. Or nothing.
WITH RECURSIVE job AS MATERIALIZED (
    SELECT j.id, j.topic, j.name, j.status::text AS status, j.priority, j.attempts, j.uncharged, j.max_attempts, j.crashes, j.submitted_at,
           j.next_run_at, j.run_after, j.started_at, j.completed_at, j.expires_at, j.lease_until, j.occurrence, j.locked_by, j.schedule_id,
           j.unique_key, j.unique_until, j.group_key, coalesce(j.waiting_on, 0) AS waiting_on,
           -- :include awaited_signal
           left(j.last_error, 500) AS last_error, coalesce($4, clock_timestamp()) AS now,
           j.status = 'PENDING' AND j.schedule_id IS NOT NULL AND j.next_run_at = '9999-12-30 00:00+00' AS held
    FROM pulse.jobs j WHERE j.id = $1
), levels AS (
    SELECT b.topic, (
        SELECT q.priority FROM pulse.jobs q WHERE q.topic = b.topic AND q.group_key IS NULL AND q.status IN ('PENDING', 'RETRYING')
        ORDER BY q.priority DESC LIMIT 1) AS priority
    FROM job b WHERE b.status IN ('PENDING', 'RETRYING') AND b.group_key IS NULL AND b.next_run_at <= b.now
    UNION ALL
    SELECT l.topic, (
        SELECT q.priority FROM pulse.jobs q WHERE q.topic = l.topic AND q.group_key IS NULL AND q.status IN ('PENDING', 'RETRYING')
        AND q.priority < l.priority ORDER BY q.priority DESC LIMIT 1)
    FROM levels l WHERE l.priority > (SELECT b.priority FROM job b)
), flow AS MATERIALIZED (
    SELECT b.*, x.name AS limit_name, x.concurrency, x.oldest_at, x.rate, d.sequence, coalesce(o.rate, d.rate) AS group_rate,
           least(coalesce(x.burst, greatest(ceil(x.rate), 1))::float8,
                 x.tokens + greatest(extract(epoch FROM b.now - x.tokens_at)::float8, 0) * x.rate) AS tokens,
           least(CASE WHEN d.sequence IS NOT NULL THEN 1 END, coalesce(o.concurrency, d.concurrency)) AS most,
           least(coalesce(CASE WHEN o.rate IS NOT NULL THEN o.burst ELSE d.burst END, greatest(ceil(coalesce(o.rate, d.rate)), 1))::float8,
                 o.tokens + greatest(extract(epoch FROM b.now - o.tokens_at)::float8, 0) * coalesce(o.rate, d.rate)) AS group_tokens
    FROM job b
    LEFT JOIN LATERAL (SELECT p.limit_name FROM pulse.topics p WHERE p.topic = b.topic LIMIT 1) AS p ON true
    JOIN LATERAL (SELECT q.* FROM pulse.limits q WHERE q.name = coalesce(p.limit_name, b.topic) AND q.group_key = '' LIMIT 1) AS x ON true
    LEFT JOIN LATERAL (SELECT q.* FROM pulse.limits q WHERE q.name = x.name AND q.group_key = '*' AND b.group_key IS NOT NULL LIMIT 1) AS d ON true
    LEFT JOIN LATERAL (SELECT q.* FROM pulse.limits q WHERE q.name = x.name AND q.group_key = b.group_key LIMIT 1) AS o ON true
    WHERE b.status IN ('PENDING', 'RETRYING')
), group_levels AS (
    SELECT b.topic, b.group_key, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = b.topic AND j.group_key = b.group_key AND
            -- :include waits_in_group
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM job b WHERE b.status IN ('PENDING', 'RETRYING') AND b.group_key IS NOT NULL AND b.next_run_at <= b.now
    UNION ALL
    SELECT l.topic, l.group_key, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key = l.group_key AND j.priority < l.priority AND
            -- :include waits_in_group
        ORDER BY j.priority DESC LIMIT 1)
    FROM group_levels l WHERE l.priority > (SELECT b.priority FROM job b)
)
SELECT uuid_send(b.id) AS id, b.topic, b.name, b.status, b.priority, b.attempts, b.uncharged, b.max_attempts, b.crashes, b.submitted_at,
    greatest(b.next_run_at, CASE WHEN b.status IN ('PENDING', 'RETRYING') THEN b.run_after END) AS next_run_at, b.started_at, b.completed_at, b.expires_at, b.lease_until, b.locked_by, b.last_error, b.now, b.held, b.unique_key,
    b.unique_until, b.group_key, b.waiting_on, b.awaited_signal,
    ARRAY(SELECT uuid_send(d.parent_id) FROM pulse.dependencies d
          WHERE b.waiting_on > 0 AND d.child_id = b.id AND NOT d.is_over ORDER BY d.parent_id LIMIT 5) AS waits_for,
    (SELECT count(*) FROM pulse.dependencies d JOIN pulse.jobs p ON p.id = d.parent_id
     WHERE b.waiting_on > 0 AND d.child_id = b.id AND p.status IN ('DEAD_LETTERED', 'CANCELED')) AS failed,
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
            WHERE q.topic = v.topic AND q.priority = v.priority AND q.group_key IS NULL AND q.status IN ('PENDING', 'RETRYING')
              AND q.next_run_at <= CASE WHEN v.priority = b.priority THEN b.next_run_at - interval '1 microsecond' ELSE b.now END
            ORDER BY q.next_run_at LIMIT $2) AS f
        LIMIT $2) AS o) + (
        SELECT count(*) FROM (
            SELECT FROM group_levels v CROSS JOIN LATERAL (
                SELECT FROM pulse.jobs j
                WHERE j.topic = v.topic AND j.group_key = v.group_key AND j.priority = v.priority AND
                      -- :include waits_in_group
                  AND (j.next_run_at, j.id) < (CASE WHEN v.priority = b.priority THEN b.next_run_at ELSE b.now END, b.id)
                ORDER BY j.next_run_at, j.id LIMIT $2) AS f
            LIMIT $2) AS o) AS before,
    w.limit_name, w.concurrency AS limit_concurrency, CASE WHEN w.tokens < 1 THEN (1 - w.tokens) / w.rate END AS limit_retry_s,
    CASE WHEN w.concurrency IS NOT NULL THEN (
        SELECT count(*) FROM (
            SELECT FROM pulse.jobs j WHERE j.counted_by = w.limit_name AND j.status = 'RUNNING'
            AND j.started_at >= coalesce(w.oldest_at, '-infinity') LIMIT w.concurrency + $2) AS o) ELSE 0 END AS limit_running,
    ARRAY(SELECT uuid_send(j.id) FROM pulse.jobs j WHERE j.counted_by = w.limit_name AND j.status = 'RUNNING'
          AND j.started_at >= coalesce(w.oldest_at, '-infinity') ORDER BY j.started_at LIMIT 5) AS limit_holders,
    w.most AS group_concurrency, CASE WHEN w.group_tokens < 1 THEN (1 - w.group_tokens) / w.group_rate END AS group_retry_s,
    CASE WHEN w.most IS NOT NULL THEN (
        SELECT count(*) FROM (
            SELECT FROM pulse.jobs j WHERE j.topic = w.topic AND j.group_key = w.group_key AND j.status = 'RUNNING' AND
            -- :include part_of_groups
            = 1 LIMIT w.most + $2) AS o) ELSE 0 END AS group_running,
    ARRAY(SELECT uuid_send(j.id) FROM pulse.jobs j WHERE w.most IS NOT NULL AND j.topic = w.topic AND j.group_key = w.group_key AND j.status = 'RUNNING' AND
          -- :include part_of_groups
          = 1 ORDER BY j.priority DESC, j.next_run_at LIMIT 5) AS group_holders,
    w.sequence, uuid_send(k.id) AS ahead_id, k.run_after AS ahead_at,
    (SELECT uuid_send(j.id) FROM pulse.jobs j
     WHERE w.sequence = 'halt' AND j.topic = w.topic AND j.group_key = w.group_key AND j.status = 'DEAD_LETTERED' AND
     -- :include part_of_groups
     = 2 ORDER BY j.priority DESC, j.next_run_at LIMIT 1) AS halted_by
FROM job b
LEFT JOIN flow w ON true
LEFT JOIN LATERAL (
    SELECT j.id, j.run_after FROM pulse.jobs j
    WHERE w.sequence IS NOT NULL AND j.topic = w.topic AND j.group_key = w.group_key AND
          -- :include waits_in_group
      AND j.next_run_at <= w.now
    ORDER BY j.priority DESC, j.next_run_at, j.id LIMIT 1) AS k ON k.id <> b.id AND b.next_run_at <= b.now
LEFT JOIN pulse.attempts a ON a.job_id = b.id AND a.attempt = b.attempts AND b.attempts > 0
LEFT JOIN pulse.dispatch_control e ON e.topic = '' AND coalesce(e.paused_until > b.now, true)
LEFT JOIN pulse.dispatch_control t ON t.topic = b.topic AND coalesce(t.paused_until > b.now, true)
LEFT JOIN pulse.schedules s ON s.id = b.schedule_id AND b.held
LEFT JOIN pulse.jobs l ON l.id = s.last_job_id
LEFT JOIN pulse.handlers h ON h.name = b.name
LEFT JOIN pulse.set_aside x ON x.job_id = b.id;
