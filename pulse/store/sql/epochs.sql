-- Epochs: how a host notices that the database has gone back, and what it does then.


-- name: look_at_epoch :one
-- What:    the identity of the database and of its server, this host's row, and which other hosts have not connected yet.
-- Args:    $1 witness uuid, $2 back_to when this place was first seen timestamptz (NULL: what it is now),
--          $3 how long to wait for other hosts after an epoch began float8 seconds, $4 hosts seen within this time were alive together
--          float8 seconds.
-- Guard:   none: reads.
-- Returns: lineage, system_id, timeline, started_at, relation, place (all of these in one), epoch, attempts_floor; counter, epoch_seen,
--          back_to: seen_at of this host's own row (without one: the newest of any host); elsewhere: hosts that were alive then and have
--          not connected to this place, behind: hosts that have not accepted this epoch yet; newest: `highest` of all
--          witnesses.
WITH here AS MATERIALIZED (
    SELECT c.system_identifier::text AS system_id,
           CASE WHEN NOT pg_is_in_recovery()
                THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline,
           pg_postmaster_start_time() AS started_at, 'pulse.witnesses'::regclass::oid AS relation
    FROM pg_control_system() AS c
), put AS MATERIALIZED (
    SELECT h.*, format('%s/%s/%s/%s/%s', h.system_id, h.timeline, (extract(epoch FROM h.started_at) * 1000000)::bigint,
                       (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), h.relation) AS place
    FROM here h
), seen AS MATERIALIZED (
    SELECT p.*, coalesce($2, (SELECT w.seen_at FROM pulse.witnesses w WHERE w.instance = $1),
                         (SELECT max(w.seen_at) FROM pulse.witnesses w WHERE w.place <> p.place)) AS back_to
    FROM put p
), newest AS MATERIALIZED (
    SELECT e.* FROM pulse.epochs e ORDER BY e.epoch DESC LIMIT 1
)
SELECT (SELECT f.lineage FROM pulse.epochs f WHERE f.epoch = 1) AS lineage, s.system_id, s.timeline, s.started_at, s.relation, s.place,
    n.epoch, n.attempts_floor, w.counter, w.epoch AS epoch_seen, s.back_to,
    (SELECT count(*)::int FROM pulse.witnesses o
     WHERE o.instance <> $1 AND o.place <> s.place AND o.seen_at >= s.back_to - $4 * interval '1 second') AS elsewhere,
    (SELECT count(*)::int FROM pulse.witnesses o
     WHERE o.instance <> $1 AND o.epoch < n.epoch AND n.detail->'hosts' ? o.instance::text
       AND n.began_at > clock_timestamp() - $3 * interval '1 second') AS behind,
    (SELECT max(o.highest) FROM pulse.witnesses o) AS newest
FROM seen s CROSS JOIN newest n LEFT JOIN pulse.witnesses w ON w.instance = $1;


-- name: server_standing :one
-- What:    cluster and timeline of the server, for each new connection.
-- Args:    none.   Guard: none: reads no table.   Returns: system_id, timeline (NULL: it is a standby).
SELECT c.system_identifier::text AS system_id,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline
FROM pg_control_system() AS c;


-- name: tick_witness :one
-- What:    increment the counter: from now on a database with a smaller one has gone back.
-- Args:    $1 witness uuid, $2 counter bigint, $3 epoch int, $4 start of the server timestamptz, $5 table oid, $6 highest int,
--          $7 place text
-- Guard:   the fence of claim_jobs.
-- Returns: counter, seen_at; nothing: look again.
UPDATE pulse.witnesses w
SET counter = w.counter + 1, seen_at = clock_timestamp(), highest = greatest(w.highest, $6), place = $7
WHERE w.instance = $1 AND w.counter >= $2 AND w.tableoid = $5 AND pg_postmaster_start_time() = $4
  AND (SELECT max(n.epoch) FROM pulse.epochs n) = $3
RETURNING w.counter, w.seen_at;


-- name: raise_epoch :one
-- What:    a new epoch begins: the database has gone back.
-- Args:    $1 epoch int, $2 floor int: the highest attempt number that this host knows of, $3 host text, $4 the last time of this
--          host in the database timestamptz, $5 the same before it went back timestamptz (the clock may have gone back, too), $6 hosts seen within this time were alive together float8 seconds,
--          $7 system_id text, $8 timeline int, $9 a margin for clocks float8 seconds
-- Guard:   the primary key, and that no newer one has begun: of two hosts one wins, and the other accepts.
-- Returns: the epoch and its floor: a multiple of 1000 above the attempt numbers of all hosts.
INSERT INTO pulse.epochs (epoch, attempts_floor, first_id, system_id, timeline, went_back_to, known_until, host, detail)
SELECT $1, ceil(greatest($2, n.attempts_floor + 1000, (SELECT max(w.highest) FROM pulse.witnesses w)) / 1000.0)::int * 1000,
    (lpad(to_hex(floor(extract(epoch FROM greatest(clock_timestamp(), $5)) * 1000 + $9::float8 * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid,
    $7, $8, $4, $5, $3,
    jsonb_build_object('hosts', (SELECT coalesce(jsonb_agg(w.instance), '[]') FROM pulse.witnesses w
                                 WHERE coalesce(w.seen_at >= $4::timestamptz - $6::float8 * interval '1 second', true)))
FROM pulse.epochs n
WHERE n.epoch = (SELECT max(e.epoch) FROM pulse.epochs e) AND n.epoch < $1
ON CONFLICT (epoch) DO NOTHING
RETURNING epoch, attempts_floor;


-- name: accept_epoch :one
-- What:    this host accepts this place and this epoch.
-- Args:    $1 witness uuid, $2 host text, $3 counter bigint, $4 epoch int, $5 highest int, $6 place text, $7 its start timestamptz, $8 table oid
-- Guard:   it is the newest epoch, and the same server and table as before; no other host writes this row.
-- Returns: counter, seen_at, highest; nothing: look again.
INSERT INTO pulse.witnesses AS w (instance, host, counter, epoch, highest, place)
SELECT $1, $2, $3 + 1, $4, greatest($5, e.attempts_floor + 1000), $6 FROM pulse.epochs e
WHERE e.epoch = $4 AND $4 = (SELECT max(n.epoch) FROM pulse.epochs n)
  AND pg_postmaster_start_time() = $7 AND 'pulse.witnesses'::regclass::oid = $8
ON CONFLICT (instance) DO UPDATE SET host = excluded.host, counter = greatest(w.counter + 1, excluded.counter), epoch = excluded.epoch,
    highest = greatest(w.highest, excluded.highest), place = excluded.place, seen_at = clock_timestamp()
RETURNING counter, seen_at, highest;


-- name: running_on :many
-- What:    what the workers of a host hold.   Args: $1 workers text[], $2 host text: all of its own workers too.   Guard: none: reads.
-- Returns: ids.
SELECT uuid_send(j.id) AS id FROM pulse.jobs j
WHERE j.status = 'RUNNING' AND (j.locked_by = ANY ($1::text[]) OR starts_with(j.locked_by, $2 || '/'));


-- name: end_epoch :one
-- What:    end the attempts that workers of this host held before the newest epoch.   From/to: RUNNING -> RETRYING, PENDING
-- Args:    $1 workers text[], $2 host text: all of its own workers too, $3 why text, $4 ids uuid[]: of these alone (NULL: all),
--          $5 now, $6 for how long they are not claimed float8 seconds: another host may run a later attempt, and reports it meanwhile.
-- Guard:   id, status, locked_by, attempts: not above the floor, of a job that may be older than the epoch. A row that is locked
--          is being ended by another transaction, or its lease lapses.
-- Returns: how many. Uncharged, in the order of ids.
WITH fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM pulse.epochs e ORDER BY e.epoch DESC LIMIT 1
), target AS (
    SELECT j.id, j.attempts AS attempt, j.locked_by AS worker, j.started_at FROM pulse.jobs j
    WHERE j.status = 'RUNNING' AND (j.locked_by = ANY ($1::text[]) OR starts_with(j.locked_by, $2 || '/'))
      AND j.attempts <= (SELECT f.attempts_floor FROM fence f)
      AND (j.id < (SELECT f.first_id FROM fence f) OR get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')
      AND ($4::uuid[] IS NULL OR j.id = ANY ($4))
    ORDER BY j.id FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE pulse.jobs j
    SET status = (CASE WHEN t.attempt = j.uncharged + 1 THEN 'PENDING' ELSE 'RETRYING' END)::pulse.job_status,
        next_run_at = CASE WHEN j.run_after IS NULL THEN coalesce($5, clock_timestamp()) + $6 * interval '1 second' ELSE j.next_run_at END,
        run_after = CASE WHEN j.run_after IS NOT NULL THEN coalesce($5, clock_timestamp()) + $6 * interval '1 second' END,
        uncharged = j.uncharged + 1, last_error = $3, locked_by = NULL, lease_until = NULL, awaited_signal = NULL  -- no signal makes it due before
    FROM target t
    WHERE j.id BETWEEN t.id AND t.id AND j.status::text = 'RUNNING' AND j.locked_by = t.worker AND j.attempts = t.attempt
    RETURNING j.id, j.attempts, t.worker, t.started_at, j.progress
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, error, progress)
    SELECT c.id, c.attempts, c.worker, c.started_at, coalesce($5, clock_timestamp()), 'released', $3, c.progress FROM changed c
    ON CONFLICT (job_id, attempt) DO NOTHING
)
SELECT count(*)::int AS ended FROM changed;


-- name: note_lost :exec
-- What:    put attempts that this host's workers hold, and that the database has lost, into the history: so the next dispatcher of
--          the job, even one started meanwhile, knows the worker of the attempt before.
-- Args:    $1 ids text, $2 attempts text, $3 workers text[] (same length), $4 why text, $5 now
-- Guard:   attempts: those that the database knows are ended by other statements.   Returns: nothing.
INSERT INTO pulse.attempts (job_id, attempt, worker, ended_at, outcome, error)
SELECT j.id, h.attempt, h.worker, coalesce($5, clock_timestamp()), 'released', $4
FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[]) AS h(id, attempt, worker)
JOIN pulse.jobs j ON j.id BETWEEN h.id AND h.id AND j.attempts < h.attempt
ON CONFLICT (job_id, attempt) DO NOTHING;


-- name: put_off_jobs :exec
-- What:    postpone jobs of which an attempt from before an epoch may still run on this host, repeatedly until it has ended: no other
--          host claims them meanwhile.
-- Args:    $1 ids uuid[] (sorted), $2 for how long float8 seconds, $3 now
-- Guard:   status; jobs that are due later stay as they are, unless a signal or the end of a parent could make them due before: one that
--          waits for a signal is due then, and its handler asks for it anyway. In a group, where it may be a sequence, the position stays.
-- Returns: nothing.
UPDATE pulse.jobs j
SET next_run_at = CASE WHEN j.waiting_on > 0 THEN j.next_run_at WHEN j.group_key IS NULL THEN l.until ELSE least(j.next_run_at, l.until) END,
    run_after = CASE WHEN j.waiting_on > 0 THEN greatest(j.run_after, l.until) WHEN j.group_key IS NOT NULL THEN l.until END, awaited_signal = NULL
FROM (SELECT o.id, coalesce($3, clock_timestamp()) + $2 * interval '1 second' AS until
      FROM pulse.jobs o WHERE o.id = ANY ($1::uuid[]) AND o.status::text IN ('PENDING', 'RETRYING')
      ORDER BY o.id FOR UPDATE SKIP LOCKED) AS l
WHERE j.id = l.id AND j.status::text IN ('PENDING', 'RETRYING')
  AND (greatest(j.next_run_at, j.run_after) < l.until OR j.awaited_signal IS NOT NULL OR j.waiting_on > 0);


-- name: attempts_gone_back :one
-- What:    has one of these jobs fewer attempts than were handed out? attempts never shrinks, so then the database has gone back.
-- Args:    $1 ids text, $2 attempts text, $3 must the job exist? bool[] (same length)
-- Guard:   none: reads.   Returns: gone_back; also true if a job is missing that must exist.
SELECT EXISTS (
    SELECT FROM unnest($1::text::uuid[], $2::text::int[], $3::bool[]) AS d(id, attempt, is_kept)
    LEFT JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id
    WHERE j.attempts < d.attempt OR (j.id IS NULL AND d.is_kept)) AS gone_back;


-- name: open_again :many
-- What:    which of these completed jobs are not COMPLETED in the database.
-- Args:    $1 ids text
-- Guard:   none: reads.   Returns: ids.
SELECT uuid_send(j.id) AS id FROM unnest($1::text::uuid[]) AS d(id)
JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING');


-- name: unknown_jobs :many
-- What:    which of these jobs the database has no row of.
-- Args:    $1 ids text
-- Guard:   none: reads.   Returns: ids.
SELECT uuid_send(d.id) AS id FROM unnest($1::text::uuid[]) AS d(id) LEFT JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id WHERE j.id IS NULL;


-- name: note_unknown :exec
-- What:    add jobs to the epoch that a host knows and the database does not.
-- Args:    $1 epoch int, $2 what they were: unknown_running or unknown_finished text, $3 ids uuid[]
-- Guard:   none: each host that accepts adds its own once.   Returns: nothing.
UPDATE pulse.epochs e
SET detail = jsonb_set(e.detail, ARRAY[$2::text], coalesce(e.detail->$2::text, '[]') || to_jsonb($3::uuid[]))
WHERE e.epoch = $1;


-- name: note_reopened :exec
-- What:    add to the epoch how many finished jobs the database listed as open, and the first of them.
-- Args:    $1 epoch int, $2 how many int, $3 ids uuid[]
-- Guard:   none: each host that accepts adds its own once.   Returns: nothing.
UPDATE pulse.epochs e
SET reopened = coalesce(e.reopened, 0) + $2,
    detail = jsonb_set(e.detail, '{reopened}', coalesce(e.detail->'reopened', '[]') || to_jsonb($3::uuid[]))
WHERE e.epoch = $1;
