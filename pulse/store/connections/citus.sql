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
-- What:    which node has the rows of this queue, and may this role use them? Making the views takes the owner's rights.
-- Args:    none.   Guard: none: reads; the catalogue, since looking a name up takes rights. All tables are on one node, so the jobs show it.
-- Returns: node, is_here, is_attached: its views are here, is_allowed, role, owner.
SELECT n.nodename || ':' || n.nodeport AS node, p.groupid = g.groupid AS is_here, v.is_attached,
       CASE WHEN v.is_attached THEN has_schema_privilege(r.oid, 'USAGE') ELSE pg_has_role(r.nspowner, 'USAGE') END AS is_allowed,
       current_user::text AS role, pg_get_userbyid(r.nspowner)::text AS owner
FROM pg_namespace r JOIN pg_class c ON c.relnamespace = r.oid AND c.relname = 'jobs'
JOIN pg_dist_shard s ON s.logicalrelid = c.oid JOIN pg_dist_placement p ON p.shardid = s.shardid
JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary' CROSS JOIN pg_dist_local_group g
CROSS JOIN (SELECT EXISTS (SELECT FROM pg_class j WHERE j.relnamespace = to_regnamespace('pulse') AND j.relname = 'jobs')) v (is_attached)
WHERE r.nspname = 'pulse_rows';


-- name: owner_of_rows :one
-- What:    whose are the tables of this queue?   Args: none.   Guard: none: reads.   Returns: owner.
SELECT pg_get_userbyid(r.nspowner)::text AS owner FROM pg_namespace r WHERE r.nspname = 'pulse_rows';


-- name: owner_of_views :one
-- What:    whose are the views on this node? In 0.2.0 they belonged to the role that made them, not to the owner of the tables.
-- Args:    none.   Guard: none: reads.   Returns: owner.
SELECT pg_get_userbyid(c.relowner)::text AS owner FROM pg_class c WHERE c.relnamespace = 'pulse'::regnamespace AND c.relname = 'jobs';


-- name: shards :many
-- What:    the tables of this queue.   Args: none.   Guard: none: reads.   Returns: name, and the number at the end of its shard's name.
SELECT c.relname::text AS name, s.shardid AS shard FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid
WHERE c.relnamespace = 'pulse_rows'::regnamespace ORDER BY c.relname;


-- name: wider_views :many
-- What:    what gives the views the columns that their tables have got, and takes away those that they will lose: a view keeps its columns, with NULL.
--          One that is made again shows again; PostgreSQL refuses another type.
-- Args:    $1 columns that go, text[], each after its table.   Guard: none: reads.   Returns: statement.
WITH there AS (
    SELECT v.oid AS view, v.relname AS name, c.oid AS shard, c.relname AS shard_name
    FROM pg_dist_shard s JOIN pg_class t ON t.oid = s.logicalrelid JOIN pg_class v ON v.relname = t.relname
    JOIN pg_class c ON c.relnamespace = t.relnamespace AND c.relname = t.relname || '_' || s.shardid
    WHERE t.relnamespace = 'pulse_rows'::regnamespace AND v.relnamespace = 'pulse'::regnamespace AND v.relkind = 'v'
), own AS (
    SELECT t.*, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod) AS type, t.name || '.' || a.attname = ANY($1) AS goes,
           r.attnum IS NOT NULL AS has,
           EXISTS (SELECT FROM pg_depend d JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
                   WHERE w.ev_class = t.view AND d.refclassid = 'pg_class'::regclass AND d.refobjid = t.shard
                     AND d.refobjsubid = r.attnum) AS shows
    FROM there t JOIN pg_attribute a ON a.attrelid = t.view AND a.attnum > 0
    LEFT JOIN pg_attribute r ON r.attrelid = t.shard AND r.attname = a.attname AND r.attnum > 0 AND NOT r.attisdropped
), columns AS (
    SELECT o.view, o.name, o.shard_name, o.attnum, o.goes OR o.has AND NOT o.shows AS differs,
           CASE WHEN o.has AND NOT o.goes THEN quote_ident(o.attname)
                WHEN o.attname = 'tableoid' THEN format('to_regclass(%L)::oid AS tableoid', format('%I.%I', 'pulse', o.name))
                ELSE format('NULL::%s AS %I', o.type, o.attname) END AS column
    FROM own o
    UNION ALL
    SELECT t.view, t.name, t.shard_name, 10000 + a.attnum, true, quote_ident(a.attname)
    FROM there t JOIN pg_attribute a ON a.attrelid = t.shard AND a.attnum > 0 AND NOT a.attisdropped
    WHERE NOT EXISTS (SELECT FROM pg_attribute v WHERE v.attrelid = t.view AND v.attname = a.attname)
      AND t.name || '.' || a.attname <> ALL($1)
)
SELECT format('%s OR REPLACE VIEW %I.%I AS SELECT %s FROM %I.%I', 'CREATE', 'pulse', c.name,
              string_agg(c.column, ', ' ORDER BY c.attnum), 'pulse_rows', c.shard_name) AS statement
FROM columns c GROUP BY c.view, c.name, c.shard_name HAVING bool_or(c.differs);


-- name: type_there :one
-- What:    is there a type of this name? A view has one, too.   Args: $1 name.   Guard: none: reads.   Returns: is_there.
SELECT EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = 'pulse'::regnamespace AND t.typname = $1) AS is_there;


-- name: version_of_rows :one
-- What:    the newest version of this queue's tables.   Args: none.   Guard: none: reads.   Returns: version, release.
SELECT version, release FROM pulse_rows.schema_version ORDER BY version DESC LIMIT 1;


-- name: version_of_functions :one
-- What:    which version of the schema the functions on this node are of.   Args: none.   Guard: none: reads.
-- Returns: version; NULL or no row: unknown, or there are none, or the owner of the schema may not replace them, since with 0.2.0 another role made them.
SELECT obj_description(p.oid, 'pg_proc') AS version FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspowner = p.proowner
WHERE n.nspname = 'pulse' AND p.proname = 'stay_with_rows';


-- name: note_version_of_functions :one
-- What:    what notes that.   Args: $1 version.   Guard: none: reads.   Returns: statement.
SELECT format('COMMENT ON FUNCTION %I.stay_with_rows() IS %L', 'pulse', $1::text) AS statement;


-- name: forget_version_of_functions :exec
-- What:    the functions on this node will be of several versions: an upgrade begins, and may be interrupted.
-- Args:    none.   Guard: none: nobody reads it while the views are there.   Returns: nothing.
COMMENT ON FUNCTION pulse.stay_with_rows() IS NULL;


-- name: unneeded :one
-- What:    what drops the functions, or the sequences, on this node that nothing needs: neither tables of all nodes, nor each other, nor what is not
--          pulse's.
-- Args:    none.   Guard: none: reads.   Returns: statement; no row: there are none.
SELECT format('DROP %s %s', o.kind, string_agg(o.name, ', ')) AS statement
FROM (SELECT 'FUNCTION', p.tableoid, p.oid, p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'pulse'::regnamespace
      UNION ALL
      SELECT 'SEQUENCE', c.tableoid, c.oid, c.oid::regclass::text FROM pg_class c
      WHERE c.relnamespace = 'pulse'::regnamespace AND c.relkind = 'S') o (kind, class, oid, name)
WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = o.class AND d.refobjid = o.oid)
GROUP BY o.kind LIMIT 1;


-- name: forget_steps :exec
-- What:    forget what an upgrade has done on this node before the queue was moved away.   Args: none.   Guard: the lock of migrations.   Returns: nothing.
DROP TABLE IF EXISTS pulse.schema_steps;


-- name: notice_move :exec
-- What:    nothing, where the rows are; the trigger of the tables refuses it where they have been.
-- Args:    none.   Guard: the trigger pulse.stay_with_rows.   Returns: nothing.
UPDATE pulse.jobs SET status = status WHERE false;


-- name: show_shards :exec
-- What:    this session sees shards in the catalogue: hiding them takes a second where drivers look for a type.
-- Args:    none.   Guard: none: this session only.   Returns: nothing.
SET citus.override_table_visibility = off;


-- name: reach_nodes :exec
-- What:    nothing, on all nodes: the coordinator's session connects to them now, and not in the time limit of the next statement.
-- Args:    none.   Guard: none: this table has no such option.   Returns: nothing.
ALTER TABLE pulse_rows.schema_version RESET (fillfactor);


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


-- name: stay_local :exec
-- What:    what this session creates is for this node alone.   Args: none.   Guard: none: this session only.   Returns: nothing.
SET citus.enable_ddl_propagation = off;


-- name: keep_together :exec
-- What:    a schema that this transaction creates is kept whole on one node.   Args: none.   Guard: none: this transaction only.   Returns: nothing.
SET LOCAL citus.enable_schema_based_sharding = on;
