-- Queues that Citus keeps: where the rows of one are. Read with pulse.store.connections.citus.


-- name: has_citus :one
-- What:    has this server loaded Citus? Plain PostgreSQL is asked nothing more: this looks at no table.   Args: none.   Guard: none: reads.
-- Returns: has_citus; in databases without the extension it is true, too.
SELECT current_setting('citus.version', true) IS NOT NULL AS has_citus;


-- name: distributed :one
-- What:    are the rows of this queue distributed by Citus?   Args: none.   Guard: none: reads.
-- Returns: is_distributed; false on any other PostgreSQL, too.
SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')
   AND EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'pulse_rows' AND c.relname = 'jobs')
    AS is_distributed;


-- name: home_of_rows :one
-- What:    which node has the rows of this queue.
-- Args:    none.   Guard: none: reads. All its tables are on one node, so the jobs show it.
-- Returns: node, is_here, and is_attached: its views are here.
SELECT n.nodename || ':' || n.nodeport AS node, p.groupid = g.groupid AS is_here, to_regclass('pulse.jobs') IS NOT NULL AS is_attached
FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary' CROSS JOIN pg_dist_local_group g
WHERE s.logicalrelid = 'pulse_rows.jobs'::regclass;


-- name: shards :many
-- What:    the tables of this queue.   Args: none.   Guard: none: reads.   Returns: name, and the number at the end of its shard's name.
SELECT c.relname::text AS name, s.shardid AS shard FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid
WHERE c.relnamespace = 'pulse_rows'::regnamespace ORDER BY c.relname;


-- name: version_of_rows :one
-- What:    the newest version of this queue's tables.   Args: none.   Guard: none: reads.   Returns: version, release.
SELECT version, release FROM pulse_rows.schema_version ORDER BY version DESC LIMIT 1;


-- name: notice_move :exec
-- What:    nothing, where the rows are; the trigger of the tables refuses it where they have been.
-- Args:    none.   Guard: the trigger pulse.stay_with_rows.   Returns: nothing.
UPDATE pulse.jobs SET status = status WHERE false;


-- name: show_shards :exec
-- What:    this session sees shards in the catalogue: hiding them takes a second where drivers look for a type.
-- Args:    none.   Guard: none: this session only.   Returns: nothing.
SET citus.override_table_visibility = off;


-- name: is_coordinator :one
-- What:    is this the primary of Citus's coordinator, which alone creates tables?   Args: none.   Guard: none: reads.
-- Returns: is_coordinator; 42P01 where there is no Citus.
SELECT g.groupid = 0 AND NOT pg_is_in_recovery() AS is_coordinator FROM pg_dist_local_group g;


-- name: write :exec
-- What:    this transaction may write, whatever the session is for.   Args: none.   Guard: none: this transaction only.   Returns: nothing.
SET TRANSACTION READ WRITE;


-- name: keep_local :exec
-- What:    what this transaction creates is for this node alone.   Args: none.   Guard: none: this transaction only.   Returns: nothing.
SET LOCAL citus.enable_ddl_propagation = off;


-- name: keep_together :exec
-- What:    a schema that this transaction creates is kept whole on one node.   Args: none.   Guard: none: this transaction only.   Returns: nothing.
SET LOCAL citus.enable_schema_based_sharding = on;
