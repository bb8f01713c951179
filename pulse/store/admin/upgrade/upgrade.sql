-- The upgrade of the schema: one at a time, and what it has done. Its steps are in versions/.


-- name: upgrade_lock :one
-- What:    one upgrade of this schema at a time; its installation waits for it, too. It does not wait: a session that waits keeps a snapshot, for which
--          CREATE INDEX CONCURRENTLY would wait, while that session waits for it.
-- Args:    none.   Guard: pg_try_advisory_lock, the key of schema_lock, until the session ends.   Returns: is_mine.
SELECT pg_try_advisory_lock(hashtextextended('pulse schema ' || 'pulse', 0)) AS is_mine;


-- name: upgrade_role :one
-- What:    SET ROLE for the session: that role owns what is created.   Args: $1 role.   Guard: none: this session only.   Returns: role.
SELECT set_config('role', $1, false) AS role;


-- name: upgrade_begin :exec
-- What:    begin a transaction whose end is sent together with its last statement: the locks of that are held for no round trip.
-- Args:    none.   Guard: none.   Returns: nothing.
BEGIN;


-- name: upgrade_commit :exec
-- What:    what follows that last statement.   Args: none.   Guard: after an error, nothing of the transaction is left.   Returns: nothing.
COMMIT;


-- name: upgrade_rollback :exec
-- What:    give up such a transaction.   Args: none.   Guard: none.   Returns: nothing.
ROLLBACK;


-- name: upgrade_limits :one
-- What:    limits of one transaction: how long to wait for a lock, and how long a statement may take; 0 is for ever. Its commit does not
--          wait for the disk.
-- Args:    $1 lock_timeout, $2 statement_timeout.   Guard: none: this transaction only.   Returns: nothing of use.
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true), set_config('synchronous_commit', 'off', true);


-- name: upgrade_guard :one
-- What:    what keeps vacuum off a table. PostgreSQL ends an autovacuum that somebody waits for, but only after a second: this lock may be
--          waited for that long, since nobody who reads or writes rows waits behind it.
-- Args:    $1 table.   Guard: none: reads.   Returns: the statement; NULL: there is no such table.
SELECT format('LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE', to_regclass($1)) AS statement WHERE to_regclass($1) IS NOT NULL;


-- name: upgrade_notes_there :one
-- What:    is an upgrade under way?   Args: none.   Guard: none: reads.   Returns: is_there.
SELECT to_regclass('pulse.schema_steps') IS NOT NULL AS is_there;


-- name: upgrade_notes :exec
-- What:    the table of what an upgrade has done; it is there while one is under way.
-- Args:    none.   Guard: IF NOT EXISTS.   Returns: nothing.
CREATE TABLE IF NOT EXISTS pulse.schema_steps (
    version int NOT NULL,
    step    text NOT NULL,
    reached text,                                   -- the key that a step of batches came to
    rows    bigint NOT NULL DEFAULT 0,              -- how many it looked at
    done_at timestamptz,                            -- NULL: it is under way
    PRIMARY KEY (version, step)
);


-- name: upgrade_noted :many
-- What:    the steps that are done, or under way.   Args: none.   Guard: none: reads.   Returns: version, step, reached, rows, is_done.
SELECT s.version, s.step, s.reached, s.rows, s.done_at IS NOT NULL AS is_done FROM pulse.schema_steps s;


-- name: upgrade_note :exec
-- What:    note how far a step has come.
-- Args:    $1 version, $2 step, $3 reached (NULL: as it was), $4 more rows, $5 is_done.   Guard: the lock of upgrades.   Returns: nothing.
INSERT INTO pulse.schema_steps AS s (version, step, reached, rows, done_at)
VALUES ($1, $2, $3, $4, CASE WHEN $5 THEN clock_timestamp() END)
ON CONFLICT (version, step) DO UPDATE
SET reached = coalesce(excluded.reached, s.reached), rows = s.rows + excluded.rows, done_at = excluded.done_at;


-- name: upgrade_last :one
-- What:    what finds the last key of a table. Without its table's name a column in ORDER BY is the text.
-- Args:    $1 column, $2 table.   Guard: none: reads.   Returns: the statement.
SELECT format('SELECT t.%1$I::text FROM %2$s t WHERE t.%1$I IS NOT NULL ORDER BY t.%1$I DESC LIMIT 1', $1::text, to_regclass($2)) AS statement;


-- name: upgrade_done :exec
-- What:    the schema has a version.   Args: $1 version, $2 release.   Guard: the primary key.   Returns: nothing.
INSERT INTO pulse.schema_version (version, release) VALUES ($1, $2);


-- name: upgrade_forget :exec
-- What:    forget the steps: the upgrade is done.   Args: none.   Guard: none: nobody else uses it.   Returns: nothing.
DROP TABLE pulse.schema_steps;


-- name: upgrade_invalid :one
-- What:    what removes an index of this name that an interrupted CREATE INDEX CONCURRENTLY left behind.
-- Args:    $1 name.   Guard: none: reads.   Returns: the statement; no row: there is none.
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I.%I', 'pulse', c.relname) AS statement
FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE c.relnamespace = to_regnamespace('pulse') AND c.relname = $1 AND NOT i.indisvalid;


-- name: upgrade_invalid_rows :one
-- What:    the same, for the coordinator of Citus.   Args: $1 name.   Guard: none: reads.   Returns: the statement; no row: there is none.
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I.%I', 'pulse_rows', c.relname) AS statement
FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE c.relnamespace = to_regnamespace('pulse_rows') AND c.relname = $1 AND NOT i.indisvalid;


-- name: upgrade_tables :many
-- What:    the size of tables.   Args: $1 names text[].   Guard: none: reads.   Returns: name, rows (estimated), bytes, with indexes.
SELECT n.name, greatest(c.reltuples, 0)::bigint AS rows, pg_total_relation_size(c.oid) AS bytes
FROM unnest($1::text[]) AS n (name) JOIN pg_class c ON c.oid = to_regclass(n.name);


-- name: upgrade_servers :many
-- What:    hosts whose server has been seen lately.   Args: $1 seconds.   Guard: none: reads.   Returns: host.
SELECT DISTINCT h.host FROM pulse.hosts h WHERE h.seen_at > clock_timestamp() - $1 * interval '1 s' ORDER BY h.host;
