-- The server, the installed schema and the database roles.


-- name: server_now :one
-- What:    is the database there, and in which version?   Args: none.   Guard: none: reads.   Returns: server_version, now.
SELECT current_setting('server_version') AS server_version, clock_timestamp() AS now;


-- name: schema_version :one
-- What:    the newest installed version.   Args: none.   Guard: none: reads.
-- Returns: version, release (NULL: the table has no such column); nothing, 42P01 or 3F000 when not installed.
SELECT v.version, to_jsonb(v) ->> 'release' AS release FROM pulse.schema_version v ORDER BY v.version DESC LIMIT 1;


-- name: schema_lock :exec
-- What:    one migration of this schema at a time; released at the end of the transaction.
-- Args: none.   Guard: pg_advisory_xact_lock, bounded by lock_timeout.   Returns: nothing.
SELECT pg_advisory_xact_lock(hashtextextended('pulse schema ' || 'pulse', 0));


-- name: roles_lock :exec
-- What:    schemas of one database may have the same prefix of roles: one makes them at a time, until the end of the transaction.
-- Args: none.   Guard: pg_advisory_xact_lock, bounded by lock_timeout.   Returns: nothing.
SELECT pg_advisory_xact_lock(hashtextextended('pulse roles', 0));


-- name: schema_limits :one
-- What:    limits of a migration: how long to wait for another one, no time limit for statements, and a search_path of
--          pg_catalog alone: the owner of the schema must not call a foreign function in public.
-- Args:    $1 lock timeout, as PostgreSQL writes it.   Guard: none: this transaction only.   Returns: nothing of use.
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true), set_config('search_path', 'pg_catalog, pg_temp', true);


-- name: schema_settings :one
-- What:    the settings that schema_limits changes, for a transaction that goes on after it.
-- Args:    none.   Guard: none: reads.   Returns: lock_timeout, statement_timeout, search_path.
SELECT current_setting('lock_timeout') AS lock_timeout, current_setting('statement_timeout') AS statement_timeout,
    current_setting('search_path') AS search_path;


-- name: schema_settings_again :one
-- What:    set them again.
-- Args:    $1 lock_timeout, $2 statement_timeout, $3 search_path.   Guard: none: this transaction only.   Returns: nothing of use.
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true), set_config('search_path', $3, true);


-- name: schema_is_there :one
-- What:    is a schema pulse installed, of whatever version?   Args: none.   Guard: none: reads.   Returns: is_there.
SELECT to_regclass('pulse.schema_version') IS NOT NULL AS is_there;


-- name: schema_foreign :one
-- What:    a table, view or sequence in the schema, before pulse is installed there.   Args: none.   Guard: none: reads.
-- Returns: name; nothing: the schema is empty, or not there.
SELECT c.relname::text AS name FROM pg_class c WHERE c.relnamespace = to_regnamespace('pulse') AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
ORDER BY c.relname LIMIT 1;


-- name: schema_standing :one
-- What:    the connected role, the owner of the schema, and whether it has the roles of `pulse migrate --roles`.
-- Args:    none.   Guard: none: reads.
-- Returns: role, owner (NULL: there is no schema), is_super, may_make_roles, prefix (NULL: it has none).
SELECT m.rolname::text AS role, o.rolname::text AS owner, m.rolsuper AS is_super, m.rolcreaterole AS may_make_roles,
    CASE WHEN o.rolname LIKE '%owner' AND (
        SELECT count(*) FROM pg_roles r
        WHERE r.rolname IN (left(o.rolname, -5) || 'server', left(o.rolname, -5) || 'submit', left(o.rolname, -5) || 'read')
          AND has_schema_privilege(r.oid, n.oid, 'USAGE')) = 3 THEN left(o.rolname, -5) END AS prefix
FROM pg_roles m LEFT JOIN pg_namespace n ON n.nspname = 'pulse' LEFT JOIN pg_roles o ON o.oid = n.nspowner
WHERE m.rolname = current_user;


-- name: become_role :one
-- What:    SET ROLE until the transaction ends: that role owns what is created.   Args: $1 role.   Guard: none: this transaction only.   Returns: role.
SELECT set_config('role', $1, true) AS role;


-- name: roles_found :many
-- What:    which of these roles exist, and whether they have rights that no role of pulse has.
-- Args:    $1 names text[].   Guard: none: reads.   Returns: name, is_mighty.
SELECT r.rolname::text AS name, r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls AS is_mighty
FROM pg_roles r WHERE r.rolname = ANY ($1::text[]);


-- name: role_members :many
-- What:    the members of a role.   Args: $1 role.   Guard: none: reads.   Returns: name, in order.
SELECT DISTINCT m.rolname::text AS name FROM pg_auth_members a JOIN pg_roles m ON m.oid = a.member JOIN pg_roles r ON r.oid = a.roleid
WHERE r.rolname = $1 ORDER BY 1;


-- name: set_session :exec
-- What:    settings of a session, where a pooler takes none at its start.
-- Args:    $1 names text[], $2 values text[].   Guard: none: this session, which the pooler keeps for one client.   Returns: nothing of use.
SELECT count(set_config(s.name, s.value, false)) FROM unnest($1::text[], $2::text[]) AS s (name, value);
