-- The gate (the switch that pauses dispatch), and the policies of topics, handlers, limits and the server.


-- name: get_gate :many
-- What:    the topics that are paused.   Args: $1 now.   Guard: none: reads.
-- Returns: topic ('': everything), reason, paused_at, paused_by, paused_until; and left_s: seconds until that, NULL without.
SELECT g.topic, g.reason, g.paused_at, g.paused_by, g.paused_until,
    extract(epoch FROM g.paused_until - coalesce($1, clock_timestamp()))::float8 AS left_s
FROM pulse.dispatch_control g
WHERE g.paused AND (g.paused_until IS NULL OR g.paused_until > coalesce($1, clock_timestamp())) ORDER BY g.topic;


-- name: pause_dispatch :one
-- What:    pause a topic; '' pauses everything.
-- Args:    $1 topic, $2 reason or NULL, $3 who or NULL, $4 until float8 (Unix) or NULL, $5 for_s float8 or NULL, $6 now
-- Guard:   the primary key: one row per topic; while a pause is in force, a second one keeps its time and, unless it has its
--          own, its reason; paused_by and paused_until are replaced.   Returns: topic.
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
-- What:    clear pauses whose time is over; claims do not wait for that.
-- Args:    $1 now
-- Guard:   the time, under the row's lock: one that was prolonged meanwhile stays.   Returns: topic, reason, paused_by.
WITH over AS (
    SELECT g.topic, g.reason, g.paused_by FROM pulse.dispatch_control g
    WHERE g.paused_until <= coalesce($1, clock_timestamp()) ORDER BY g.topic FOR UPDATE
), changed AS (
    UPDATE pulse.dispatch_control g
    SET paused = false, reason = NULL, paused_at = NULL, paused_by = NULL, paused_until = NULL
    FROM over o WHERE g.topic = o.topic
    RETURNING o.topic, o.reason, o.paused_by
)
SELECT topic, reason, paused_by, pulse.tell('pulse_gate', topic)::text AS told FROM changed;


-- name: resume_dispatch :one
-- What:    resume a topic.   Args: $1 topic.   Guard: the primary key.   Returns: topic, when it was paused.
WITH changed AS (
    UPDATE pulse.dispatch_control g
    SET paused = false, reason = NULL, paused_at = NULL, paused_by = NULL, paused_until = NULL
    WHERE g.topic = $1 AND g.paused RETURNING g.topic
)
SELECT topic, pulse.tell('pulse_gate', topic)::text AS told FROM changed;


-- name: notify_work :exec
-- What:    notify the dispatchers of all hosts that there is work.
-- Args:    $1 sender.   Guard: none: a hint, in a transaction of its own, so that no commit waits for it.   Returns: nothing.
SELECT pulse.tell('pulse_work', $1);


-- name: note_handlers :exec
-- What:    store what a worker declares of its handlers; the last hello wins.
-- Args:    $1 names text[] (sorted), $2 topics text[], $3 max_attempts int[], $4 timeout_s float8[], $5 max_crashes int[],
--          $6 stall_s float8[], $7 backoff text[], $8 on_dead_letter text[], $9 on_crash text[] (same length)
-- Guard:   rows in name order; unchanged rows are written at most once a minute.   Returns: nothing.
INSERT INTO pulse.handlers AS h (name, topic, max_attempts, timeout_s, max_crashes, stall_s, backoff, on_dead_letter, on_crash)
SELECT d.name, d.topic, d.max_attempts, d.timeout_s, d.max_crashes, d.stall_s, d.backoff, d.on_dead_letter, d.on_crash
FROM unnest($1::text[], $2::text[], $3::int[], $4::float8[], $5::int[], $6::float8[], $7::text[], $8::text[], $9::text[])
    AS d(name, topic, max_attempts, timeout_s, max_crashes, stall_s, backoff, on_dead_letter, on_crash)
ORDER BY d.name
ON CONFLICT (name) DO UPDATE
SET topic = excluded.topic, max_attempts = excluded.max_attempts, timeout_s = excluded.timeout_s, max_crashes = excluded.max_crashes,
    stall_s = excluded.stall_s, backoff = excluded.backoff, on_dead_letter = excluded.on_dead_letter, on_crash = excluded.on_crash,
    seen_at = excluded.seen_at
WHERE (h.topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff, h.on_dead_letter, h.on_crash) IS DISTINCT FROM
      (excluded.topic, excluded.max_attempts, excluded.timeout_s, excluded.max_crashes, excluded.stall_s, excluded.backoff,
       excluded.on_dead_letter, excluded.on_crash)
   OR h.seen_at < excluded.seen_at - interval '1 minute';


-- name: set_server_defaults :exec
-- What:    write this server's defaults into the row '' of pulse.topics.
-- Args:    $1 max_attempts int, $2 max_crashes int, $3 backoff text (NULL: quadratic)
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
SELECT t.topic, t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s, t.backoff,
    t.limit_name AS limit, t.publish
FROM pulse.topics t WHERE t.topic IN ($1, '');


-- name: list_topics :many
-- What:    a page of policies, by topic.   Args: $1 after topic or NULL, $2 limit int.   Guard: none: reads.   Returns: the rows, in order.
SELECT t.topic, t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s, t.backoff,
    t.limit_name AS limit, t.publish
FROM pulse.topics t WHERE $1::text IS NULL OR t.topic > $1 ORDER BY t.topic LIMIT $2;


-- name: handlers_of_topic :many
-- What:    handlers whose jobs wait in a topic by default: their options win over its policy.
-- Args:    $1 topic.   Guard: none: reads.   Returns: name and the declared options.
SELECT h.name, h.max_attempts, h.max_crashes, h.timeout_s, h.stall_s, h.backoff
FROM pulse.handlers h WHERE coalesce(h.topic, 'default') = $1 ORDER BY h.name LIMIT 1000;


-- name: live_policies :many
-- What:    the options that servers keep in memory.   Args: none.   Guard: none: reads.   Returns: the topics that set one.
SELECT t.topic, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s FROM pulse.topics t
WHERE t.stall_s IS NOT NULL OR t.lease_s IS NOT NULL OR t.retention_s IS NOT NULL OR t.retention_dead_s IS NOT NULL OR t.ageing_s IS NOT NULL
ORDER BY t.topic;


-- name: limited_topics :many
-- What:    which topics go by which limit: claim_limited claims there.   Args: none.   Guard: none: reads.
-- Returns: limit, topic: those that name it; and one with its own name, unless that topic names another.
SELECT x.name AS limit, t.topic FROM pulse.limits x JOIN pulse.topics t ON t.limit_name = x.name WHERE x.group_key = ''
UNION
SELECT x.name, x.name FROM pulse.limits x LEFT JOIN pulse.topics t ON t.topic = x.name
WHERE x.group_key = '' AND t.limit_name IS NULL ORDER BY 1, 2;


-- name: begin_to_change_limits :exec
-- What:    the first statement of a transaction that changes limits: wait until no other one does, and keep others waiting.
-- Args:    none.   Guard: the lock: two that have read the limits would wait for each other in pulse.await_claims. Claims go on.
-- Returns: nothing.
LOCK TABLE pulse.limits IN SHARE UPDATE EXCLUSIVE MODE;


-- name: set_limit :exec
-- What:    set and unset options of a limit, or of one of its groups.   Args: $1 name, $2 group or NULL, $3 options as a JSON object (null: unset)
-- Guard:   in pulse.set_limit: unknown options and values that are not allowed raise 22023.   Returns: nothing.
SELECT pulse.set_limit($1, $2, $3::text::jsonb);


-- name: unset_limit :one
-- What:    remove a limit, or what differs for one of its groups.   Args: $1 name, $2 group or NULL
-- Guard:   in pulse.unset_limit.   Returns: whether there was one.
SELECT pulse.unset_limit($1, $2) AS done;


-- name: page_of_limits :many
-- What:    a page of limits and of groups that differ, by name and group.
-- Args:    $1 after name or NULL, $2 after group, $3 limit int, $4 name, $5 group ('': of all jobs): of these alone, or NULL, $6 now.
-- Guard:   none: reads.
-- Returns: name, group_key (NULL: of all jobs), the options, tokens (starts that are left now; NULL without a rate), running: how many slots
--          are taken, of a group in all topics of the limit, counted up to 1000. Of all jobs: topics, those that go by the limit, 100 at
--          most, declared_by, undeclared_at.
SELECT x.name, nullif(x.group_key, '') AS group_key, x.concurrency, x.rate, x.burst, d.concurrency AS group_concurrency,
    d.rate AS group_rate, d.burst AS group_burst, d.sequence,
    CASE WHEN x.rate IS NOT NULL THEN least(b.burst, coalesce(
        x.tokens + greatest(extract(epoch FROM coalesce($6, clock_timestamp()) - x.tokens_at)::float8, 0) * x.rate, b.burst)) END AS tokens,
    CASE WHEN x.group_key = '' THEN (SELECT count(*) FROM (
        SELECT FROM pulse.jobs j WHERE j.counted_by = x.name AND j.status = 'RUNNING' LIMIT 1000) AS n)
    ELSE (SELECT count(*) FROM (
        SELECT FROM unnest(w.topics) AS t CROSS JOIN LATERAL (
            SELECT FROM pulse.jobs j WHERE j.topic = t AND j.group_key = x.group_key AND j.status = 'RUNNING' AND
            -- :include part_of_groups
            = 1 LIMIT 1000) AS r LIMIT 1000) AS n) END AS running,
    CASE WHEN x.group_key = '' THEN w.topics[:100] END AS topics, x.declared_by, date_part('epoch', x.undeclared_at) AS undeclared_at
FROM pulse.limits x
LEFT JOIN pulse.limits d ON x.group_key = '' AND d.name = x.name AND d.group_key = '*'
LEFT JOIN (SELECT t.limit_name, array_agg(t.topic ORDER BY t.topic) AS topics FROM pulse.topics t
           WHERE t.limit_name IS NOT NULL GROUP BY t.limit_name) AS n ON n.limit_name = x.name
CROSS JOIN LATERAL (SELECT coalesce(x.burst, greatest(ceil(x.rate), 1))::float8 AS burst) AS b
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT x.name WHERE NOT EXISTS (SELECT FROM pulse.topics t WHERE t.topic = x.name AND t.limit_name IS NOT NULL))
           || coalesce(n.topics, '{}') AS topics) AS w
WHERE (x.group_key = '' OR (x.group_key <> '*' AND num_nonnulls(x.concurrency, x.rate) > 0))
  AND ($1::text IS NULL OR (x.name, x.group_key) > ($1, $2)) AND ($4::text IS NULL OR x.name = $4) AND ($5::text IS NULL OR x.group_key = $5)
ORDER BY x.name, x.group_key LIMIT $3;


-- name: declare_limit :exec
-- What:    note that code declares a limit.   Args: $1 name, $2 by.   Guard: the primary key.   Returns: nothing.
UPDATE pulse.limits x SET declared_by = $2, undeclared_at = NULL WHERE x.name = $1 AND x.group_key = '';


-- name: undeclare_limits :many
-- What:    mark limits that an application no longer declares; they stay until an operator unsets them.
-- Args:    $1 declared_by text, $2 names text[] that it declares
-- Guard:   those of this application alone, each once (what differs for groups has no declared_by); locked in the order of names.
-- Returns: name.
WITH gone AS (
    SELECT x.name FROM pulse.limits x
    WHERE x.declared_by = $1 AND x.undeclared_at IS NULL AND NOT x.name = ANY ($2::text[])
    ORDER BY x.name FOR UPDATE
)
UPDATE pulse.limits x SET undeclared_at = clock_timestamp() FROM gone g WHERE x.name = g.name AND x.group_key = '' RETURNING x.name;


-- name: forget_buckets :one
-- What:    delete buckets of groups that are as good as new: they hold as many tokens as they can.
-- Args:    $1 limit int, $2 now
-- Guard:   the tokens, under the row's lock: one that a claim has taken from stays.   Returns: how many are gone.
WITH full_ones AS (
    SELECT x.name, x.group_key
    FROM pulse.limits x LEFT JOIN pulse.limits d ON d.name = x.name AND d.group_key = '*'
    WHERE x.group_key NOT IN ('', '*') AND num_nonnulls(x.concurrency, x.rate) = 0
      AND coalesce(x.tokens + extract(epoch FROM coalesce($2, clock_timestamp()) - x.tokens_at)::float8 * d.rate
                   >= coalesce(d.burst, greatest(ceil(d.rate), 1)), true)
    ORDER BY x.name, x.group_key LIMIT $1 FOR UPDATE OF x SKIP LOCKED
), gone AS (
    DELETE FROM pulse.limits x USING full_ones f
    WHERE x.name = f.name AND x.group_key = f.group_key RETURNING x.name
)
SELECT count(*)::int AS gone FROM gone;
