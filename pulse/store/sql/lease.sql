-- Leases: which jobs workers hold, and for how much longer.


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
FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[], $4::text[]) AS d(id, attempt, worker, progress)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id, j.attempts;


-- name: save_checkpoints :many
-- What:    store checkpoints for the next attempt.   From/to: RUNNING -> RUNNING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 checkpoints text[] (JSON; same length, sorted by id)
-- Guard:   id, status, locked_by, attempts.   Returns: id, attempt saved; a missing one is lost to its worker.
UPDATE pulse.jobs j SET checkpoint = d.checkpoint::jsonb
FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[], $4::text[]) AS d(id, attempt, worker, checkpoint)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id, j.attempts;


-- name: doubt_leases :exec
-- What:    heartbeats have arrived that cannot be written: for a while no watchdog may end attempts.   Args: $1 wait_s float8, $2 now.
-- Guard:   a wait is never shortened.   Returns: nothing.
UPDATE pulse.sweep_mark m SET wait_until = GREATEST(m.wait_until, coalesce($2, clock_timestamp()) + $1 * interval '1 second');


-- name: running_of_worker :many
-- What:    the jobs that this worker holds by the database, for its hello.
-- Args:    $1 worker text
-- Guard:   none: reads.   Returns: id, attempt, name, topic, timeout_s, group_key; texts as bytes, so that corrupt ones can be read, too.
SELECT uuid_send(j.id) AS id, j.attempts, textsend(j.name) AS name, textsend(j.topic) AS topic, j.timeout_s,
    textsend(j.group_key) AS group_key
FROM pulse.jobs j WHERE j.status = 'RUNNING' AND j.locked_by = $1;


-- name: leases_of_workers :many
-- What:    the same for several workers, and how long each lease still runs, also where a pool parent extends it.
-- Args:    $1 workers text[], $2 now
-- Guard:   none: reads.   Returns: worker, id, attempt, name, topic, timeout_s, group_key (bytes, as above), left_s.
SELECT j.locked_by AS worker, uuid_send(j.id) AS id, j.attempts, textsend(j.name) AS name, textsend(j.topic) AS topic, j.timeout_s,
    textsend(j.group_key) AS group_key, extract(epoch FROM j.lease_until - coalesce($2, clock_timestamp()))::float8 AS left_s
FROM pulse.jobs j WHERE j.status = 'RUNNING' AND j.locked_by = ANY ($1::text[]);


-- name: jobs_named :many
-- What:    name, topic and timeout of these jobs, whatever their status: a worker still holds ended attempts of them.
-- Args:    $1 ids uuid[]
-- Guard:   none: reads.   Returns: id, name, topic, timeout_s, group_key (bytes, as above).
SELECT uuid_send(j.id) AS id, textsend(j.name) AS name, textsend(j.topic) AS topic, j.timeout_s,
    textsend(j.group_key) AS group_key
FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: running_workers :many
-- What:    every worker that holds a lease.   Args: none.   Guard: none: reads.   Returns: worker.
SELECT DISTINCT j.locked_by AS worker FROM pulse.jobs j WHERE j.status = 'RUNNING';


-- name: move_claims :many
-- What:    move claims that no handler has started to another worker of this dispatcher.   From/to: RUNNING -> RUNNING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 new workers text[] (same length, sorted by id)
-- Guard:   id, status, locked_by, attempts.   Returns: ids moved; a missing one was stale.
UPDATE pulse.jobs j SET locked_by = d.heir
FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[], $4::text[]) AS d(id, attempt, worker, heir)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id;
