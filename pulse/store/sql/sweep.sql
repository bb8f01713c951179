-- Sweeps of the watchdog: it ends lapsed leases, expires jobs that were not started in time, and deletes old ones.


-- name: mark_sweep :one
-- What:    a watchdog begins a sweep: store the time, and return when the last sweep of any watchdog was. After a gap no
--          watchdog may end attempts for a while: that is stored too, since the others see no gap after this mark;
--          the wait never exceeds wait_s, however far the clock was set back since.
-- Args:    $1 gap_s float8: a longer time between sweeps is a gap, $2 wait_s float8: how long to wait after one, $3 now
-- Guard:   the row's lock: of two that begin at once one waits, and sees the other's mark. And the table lock that a
--          heartbeat takes: while no lease can be extended no mark is made either, so that every watchdog sees a gap.
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


-- name: note_host :exec
-- What:    this host's supervisor was here.   Args: $1 host, $2 boot, $3 pidns bigint.   Guard: the primary key.   Returns: nothing.
INSERT INTO pulse.hosts (host, boot, pidns) VALUES ($1, $2, $3)
ON CONFLICT (host, boot, pidns) DO UPDATE SET seen_at = clock_timestamp();


-- name: host_boots :many
-- What:    the boots of a host, and how long ago each was seen: one last seen before this kernel started has ended.
-- Args:    $1 host, $2 now.   Guard: none: reads.   Returns: boot, seen_ago_s.
SELECT h.boot, extract(epoch FROM coalesce($2, clock_timestamp()) - max(h.seen_at))::float8 AS seen_ago_s
FROM pulse.hosts h WHERE h.host = $1 GROUP BY h.boot;


-- name: lapsed_attempts :many
-- What:    RUNNING jobs whose lease has lapsed: what the watchdog ends as lease_expired.
-- Args:    $1 limit int, $2 workers text[] to leave out, $3 now
-- Guard:   none: reads; end_attempts checks the lease again.   Returns: id, attempt, worker, sorted by id.
SELECT uuid_send(l.id) AS id, l.attempts, l.locked_by FROM (
    SELECT j.id, j.attempts, j.locked_by FROM pulse.jobs j
    WHERE j.status = 'RUNNING' AND j.lease_until < coalesce($3, clock_timestamp()) AND j.locked_by <> ALL ($2::text[])
    ORDER BY j.started_at LIMIT $1) AS l
ORDER BY l.id;


-- name: expire_jobs :many
-- What:    dead-letter jobs that were not started in time.   From/to: PENDING, RETRYING -> DEAD_LETTERED
-- Args:    $1 limit int, $2 now
-- Guard:   status and expires_at, not set aside, under SKIP LOCKED (what is being claimed or canceled now is looked at again a second later),
--          and status again in the UPDATE; pulse.settle for those that wait for them.
-- Returns: id, name, topic, when it should have started, as the first line of last_error says it (the last three are bytes:
--          they may be corrupt). Their history gets an attempt 0, which stands for no attempt.
--          The partial index holds only jobs that may expire, so all others cost nothing.
--          A job is submitted for each whose handler asks for it, as in end_attempts.
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
    RETURNING j.id, j.name, j.topic, j.priority, j.completed_at, j.last_error, j.progress, j.is_parent
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, ended_at, outcome, error, progress)
    SELECT c.id, 0, c.completed_at, 'expired', c.last_error, c.progress FROM changed c
    ON CONFLICT (job_id, attempt) DO UPDATE SET ended_at = excluded.ended_at, error = excluded.error, progress = excluded.progress
), events AS (
    SELECT count(pulse.submit(h.on_dead_letter, pulse.event_args(c.id, c.name, c.topic, 0, 'expired', c.last_error),
                              topic => c.topic, priority => c.priority))
    FROM changed c JOIN pulse.handlers h ON h.name = c.name AND h.on_dead_letter IS NOT NULL
), settled AS (
    SELECT CASE WHEN p.ids IS NOT NULL THEN pulse.settle(p.ids) END
    FROM (SELECT array_agg(c.id) AS ids FROM changed c WHERE c.is_parent) AS p
)
SELECT uuid_send(id) AS id, textsend(name) AS name, textsend(topic) AS topic, textsend(split_part(last_error, E'\n', 1)) AS error
FROM changed
WHERE (SELECT true FROM events) AND (SELECT true FROM settled);


-- name: expired_jobs :many
-- What:    what expire_jobs ended a short time ago, when its answer was lost.   Args: $1 seconds.   Guard: none: reads.
-- Returns: as expire_jobs. It looks at all dead letters, in a partial index.
SELECT uuid_send(j.id) AS id, textsend(j.name) AS name, textsend(j.topic) AS topic, textsend(split_part(j.last_error, E'\n', 1)) AS error
FROM pulse.jobs j
WHERE j.status = 'DEAD_LETTERED' AND j.completed_at > clock_timestamp() - $1 * interval '1 second' AND j.last_error LIKE 'expired: %';


-- name: first_late_job :one
-- What:    the job that expire_jobs would end first.   Args: $1 now.   Guard: none: reads.   Returns: id, or nothing.
SELECT uuid_send(j.id) AS id FROM pulse.jobs j
WHERE j.status IN ('PENDING', 'RETRYING') AND j.expires_at <= coalesce($1, now()) AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
ORDER BY j.expires_at LIMIT 1;


-- name: forget_jobs :one
-- What:    delete the old jobs in a window of the primary key, with their history.
-- Args:    $1 from uuid, $2 window int, $3 keep_s float8 (completed, canceled), $4 keep_dead_s float8, for topics without
--          their own, $5 now
-- Guard:   status and completed_at, in the DELETE itself: a retry that comes first keeps the job; and no job that waited for it is left
--          to run, as it may read its result. One process at a time, by the
--          lock of a row that no other role may lock (any role that connects could take an advisory lock).
-- Returns: mine (false: another process is deleting, and nothing was done), walked, gone, last: the last id of the window,
--          first_left: the first id that was not deleted (both NULL if there is none).
--          EXCEPT, not NOT IN: that compares all pairs (200 ms), since the planner expects too many to hash.
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
      AND (j.is_parent IS NULL OR (
          SELECT d.child_id FROM pulse.dependencies d
          WHERE d.parent_id = j.id AND (SELECT c.completed_at IS NULL FROM pulse.jobs c WHERE c.id = d.child_id) LIMIT 1) IS NULL)
    RETURNING j.id
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE a.job_id BETWEEN g.id AND g.id
)
SELECT EXISTS (SELECT FROM mine) AS mine, (SELECT count(*) FROM walked) AS walked, (SELECT count(*) FROM gone) AS gone,
    (SELECT uuid_send(w.id) FROM walked w ORDER BY w.id DESC LIMIT 1) AS last,
    (SELECT uuid_send(l.id) FROM (SELECT w.id FROM walked w EXCEPT SELECT g.id FROM gone g) AS l ORDER BY l.id LIMIT 1) AS first_left;


-- name: first_job_from :one
-- What:    the first job in the order of ids.   Args: $1 from uuid.   Guard: none: reads.   Returns: id, or nothing.
SELECT uuid_send(j.id) AS id FROM pulse.jobs j WHERE j.id >= $1 ORDER BY j.id LIMIT 1;


-- name: note_retention :exec
-- What:    store how far retention has got: a round begins, goes on or ends.
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
-- What:    how far retention has got.   Args: none.   Guard: none: reads.   Returns: the row.
SELECT m.stepped_at, m.began_at, m.walked, m.gone, m.ended_at, m.last_began_at, m.last_walked, m.last_gone, m.total_gone
FROM pulse.retention_mark m;


-- name: forget_actions :one
-- What:    delete old audit entries.   Args: $1 keep_s float8, $2 limit int, $3 now
-- Guard:   the time, in the DELETE; under SKIP LOCKED: another server may delete, too.   Returns: how many.
WITH old AS (
    SELECT a.id FROM pulse.audit a WHERE a.at < coalesce($3, clock_timestamp()) - $1 * interval '1 second'
    ORDER BY a.at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM pulse.audit a USING old o WHERE a.id = o.id RETURNING a.id
)
SELECT count(*) AS gone FROM gone;


-- name: settle_forgotten :one
-- What:    settle dependencies on jobs that have ended, and that nobody has settled: SQL that is not pulse's, a transaction with an old
--          snapshot.
-- Args:    $1 parent uuid, $2 child uuid (where the last step ended), $3 most dependencies to look at int
-- Guard:   pulse.settle.   Returns: walked (how many were looked at), the last of them (parent, child), settled: how many jobs had been forgotten.
WITH walked AS MATERIALIZED (
    SELECT d.parent_id, d.child_id, d.is_over FROM pulse.dependencies d
    WHERE (d.parent_id, d.child_id) > ($1, $2) ORDER BY d.parent_id, d.child_id LIMIT $3
), forgotten AS MATERIALIZED (
    SELECT array_agg(DISTINCT w.parent_id) AS ids FROM walked w
    WHERE NOT w.is_over AND coalesce((SELECT p.completed_at IS NOT NULL FROM pulse.jobs p WHERE p.id = w.parent_id), true)
), last AS (
    SELECT w.parent_id, w.child_id FROM walked w ORDER BY w.parent_id DESC, w.child_id DESC LIMIT 1
)
SELECT (SELECT count(*) FROM walked) AS walked, (SELECT uuid_send(l.parent_id) FROM last l) AS parent, (SELECT uuid_send(l.child_id) FROM last l) AS child,
    coalesce(cardinality(f.ids), 0) AS settled, pulse.settle(f.ids)
FROM forgotten f;
