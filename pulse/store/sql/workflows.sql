-- Workflows: jobs that wait for other jobs, or for signals.


-- name: related_jobs :many
-- What:    the jobs that a job waits for, or was to wait for; and those that wait for it. What is not over comes first.
-- Args:    $1 id uuid, $2 most of each int.   Guard: none: reads.
-- Returns: is_parent (else: is a child), id, name, status (both NULL: it was deleted), on_failure, is_over, and how many there are of each.
SELECT true AS is_parent, uuid_send(d.parent_id) AS id, p.name, p.status::text AS status, d.on_failure, d.is_over, d.total
FROM (SELECT d.*, count(*) OVER () AS total FROM pulse.dependencies d WHERE d.child_id = $1 ORDER BY d.is_over, d.parent_id LIMIT $2) AS d
LEFT JOIN pulse.jobs p ON p.id = d.parent_id
UNION ALL
SELECT false, uuid_send(d.child_id), c.name, c.status::text, d.on_failure, d.is_over, d.total
FROM (SELECT d.*, count(*) OVER () AS total FROM pulse.dependencies d WHERE d.parent_id = $1 ORDER BY d.is_over, d.child_id LIMIT $2) AS d
LEFT JOIN pulse.jobs c ON c.id = d.child_id;


-- name: job_graph :one
-- What:    the graph that a job belongs to: all jobs that dependencies link with it, in whatever direction and however far.
-- Args:    $1 id uuid, $2 most jobs int, $3 most dependencies int.   Guard: none: reads.
-- Returns: ids, names and statuses (NULL: it was deleted), the nearest first; edges: pairs of places in these, of a parent and its child.
WITH RECURSIVE graph (id) AS (
    SELECT $1::uuid
    UNION
    SELECT n.id FROM graph g
    CROSS JOIN LATERAL (
        SELECT d.child_id AS id FROM pulse.dependencies d WHERE d.parent_id = g.id
        UNION ALL
        SELECT d.parent_id FROM pulse.dependencies d WHERE d.child_id = g.id) AS n
), nodes AS MATERIALIZED (
    SELECT g.id, (row_number() OVER () - 1)::int AS place FROM (SELECT g.id FROM graph g LIMIT $2) AS g
), edges AS MATERIALIZED (
    SELECT p.place AS parent, n.place AS child FROM nodes n
    CROSS JOIN LATERAL (SELECT d.parent_id FROM pulse.dependencies d WHERE d.child_id = n.id) AS d
    JOIN nodes p ON p.id = d.parent_id
    ORDER BY n.place, p.place LIMIT $3
)
SELECT array_agg(uuid_send(n.id) ORDER BY n.place) AS ids, array_agg(j.name ORDER BY n.place) AS names,
    array_agg(j.status ORDER BY n.place) AS statuses, ARRAY(SELECT ARRAY[e.parent, e.child] FROM edges e) AS edges
FROM nodes n
LEFT JOIN LATERAL (SELECT left(j.name, 100) AS name, j.status::text AS status FROM pulse.jobs j WHERE j.id = n.id LIMIT 1) AS j ON true;


-- name: parents_of_job :many
-- What:    ids of the jobs that a job waits for, or has waited for, and that are still there.
-- Args:    $1 id uuid, $2 after: the last id of the page before uuid, $3 limit int.   Guard: none: reads.   Returns: id, in that order.
SELECT d.parent_id AS id FROM pulse.dependencies d
WHERE d.child_id = $1 AND d.parent_id > $2 AND EXISTS (SELECT FROM pulse.jobs p WHERE p.id = d.parent_id)
ORDER BY d.parent_id LIMIT $3;


-- name: dependents :many
-- What:    the jobs that wait for some jobs, or have waited for them, and those that wait for these in turn.
-- Args:    $1 ids uuid[], $2 most int.   Guard: none: reads.   Returns: ids, without those of $1.
WITH RECURSIVE tree (id) AS (
    SELECT r.id FROM unnest($1::uuid[]) AS r(id)
    UNION
    SELECT d.child_id FROM tree t
    CROSS JOIN LATERAL (SELECT d.child_id FROM pulse.dependencies d WHERE d.parent_id = t.id) AS d
)
SELECT uuid_send(t.id) AS id FROM (SELECT t.id FROM tree t LIMIT $2 + cardinality($1::uuid[])) AS t
EXCEPT SELECT uuid_send(r.id) FROM unnest($1::uuid[]) AS r(id);


-- fragment: was_prevented
-- What:    whether a job c was canceled because another one had failed: that is the reason that pulse.settle gives. What an operator has
--          canceled was not.
c.status::text = 'CANCELED' AND c.last_error LIKE 'canceled: it waited for other jobs, and %'


-- name: prevented_jobs :many
-- What:    the jobs that were canceled because one of these had failed, or one that was canceled because of that; they are locked.
-- Args:    $1 ids uuid[], $2 most int
-- Guard:   status and reason, tested again under the lock; locked in id order.   Returns: ids.
WITH RECURSIVE tree (id) AS (
    SELECT r.id FROM unnest($1::uuid[]) AS r(id)
    UNION
    SELECT c.id FROM tree t
    CROSS JOIN LATERAL (SELECT d.child_id FROM pulse.dependencies d WHERE d.parent_id = t.id AND d.on_failure = 'cancel') AS d
    CROSS JOIN LATERAL (
        SELECT c.id FROM pulse.jobs c
        WHERE c.id = d.child_id AND
        -- :include was_prevented
    ) AS c
)
SELECT uuid_send(c.id) AS id FROM (SELECT t.id FROM (SELECT t.id FROM tree t LIMIT $2 + cardinality($1::uuid[])) AS t ORDER BY t.id) AS t
CROSS JOIN LATERAL (
    SELECT c.id FROM pulse.jobs c
    WHERE c.id = t.id AND
    -- :include was_prevented
    FOR UPDATE) AS c;


-- name: retry_relatives :many
-- What:    let jobs that were just retried count again for those that wait for them, and wait again for what has not ended.
-- Args:    $1 ids uuid[], $2 the ones among them that were canceled because another job had failed uuid[]
-- Guard:   none: pulse.wait_again has it.   Returns: those that are PENDING still (another failed job may cancel one of $2 again), whether they are held.
SELECT uuid_send(w.job_id) AS id, w.is_held FROM pulse.wait_again($1::uuid[], $2::uuid[]) AS w;


-- name: send_signal :one
-- What:    send a signal to a job.
-- Args:    $1 job uuid, $2 name text, $3 payload text (JSON), $4 key text (NULL: it is new).
-- Guard:   none: pulse.signal has them: the job is there, and was neither completed nor canceled.   Returns: whether it is new.
SELECT pulse.signal($1, $2, $3::text::jsonb, $4);


-- name: next_signal :one
-- What:    the first signal of a name that a handler has not had yet.
-- Args:    $1 job uuid, $2 name text, $3 ids of those that it has had bigint[], $4 now.   Guard: none: reads, in one snapshot.
-- Returns: how many signals were sent to the job, whether the wait for it that the last attempt ended with has outlasted its time, now (Unix),
--          and the signal, or NULLs; nothing: there is no such job.
SELECT coalesce(j.signals, 0) AS sent, coalesce(j.awaited_signal = $2, false) AS is_over, date_part('epoch', coalesce($4, clock_timestamp())) AS now, s.id, s.payload::text AS payload,
       date_part('epoch', s.sent_at) AS sent_at
FROM pulse.jobs j
LEFT JOIN LATERAL (
    SELECT s.id, s.payload, s.sent_at FROM pulse.signals s
    WHERE s.job_id = j.id AND s.name = $2 AND s.id <> ALL ($3::bigint[]) ORDER BY s.id LIMIT 1) AS s ON true
WHERE j.id = $1;


-- name: signals_of_job :many
-- What:    the first signals that were sent to a job.   Args: $1 job uuid, $2 most int, $3 most bytes of payloads int.   Guard: none: reads.
-- Returns: name, key, payload (JSON; NULL behind so many bytes), sent_at (Unix), in the order in which its handler gets them.
SELECT s.name AS signal, s.key, CASE WHEN s.bytes <= $3 THEN s.payload END AS payload, date_part('epoch', s.sent_at) AS sent_at
FROM (
    SELECT s.*, sum(octet_length(s.payload)) OVER (ORDER BY s.id) AS bytes
    FROM (SELECT s.id, s.name, s.key, s.payload::text AS payload, s.sent_at FROM pulse.signals s WHERE s.job_id = $1 ORDER BY s.id LIMIT $2) AS s
) AS s ORDER BY s.id;
