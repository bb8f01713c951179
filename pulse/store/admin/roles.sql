-- The database roles of `pulse migrate --roles`, and what each of them may do. None can log in: they are granted to roles that
-- can. They have no rights beyond these; a test compares them with the catalogue, and revokes each privilege of the server to
-- see that something needs it.
--
--   :"owner"   owns the schema and all that is in it: its members may upgrade
--   :"server"  what the supervisor, its actors and `pulse doctor` need: no DDL, no TRUNCATE
--   :"submit"  calls pulse.submit and pulse.submit_many, and completes attempts that it runs; it reads nothing of any job, but
--              the id of one whose unique key it knows
--   :"read"    reads all but args, checkpoints, progress and results
--
-- Three parts, each of which may be repeated: the roles (which takes CREATEROLE), the owner, the grants. Names are filled in as
-- psql would: :"owner" as a name, :'owner' as a text.

-- part: roles
DO $roles$
DECLARE
    role record;
BEGIN
    FOR role IN
        SELECT w.name, w.what FROM (VALUES
            (:'owner', 'pulse: owns the schema of a queue, and upgrades it'),
            (:'server', 'pulse: what a supervisor and its actors need'),
            (:'submit', 'pulse: submits jobs by SQL, and nothing else'),
            (:'read', 'pulse: reads all but args, results, progress and checkpoints')) AS w(name, what)
        WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = w.name)
    LOOP
        EXECUTE format('CREATE ROLE %I NOLOGIN', role.name);
        EXECUTE format('COMMENT ON ROLE %I IS %L', role.name, role.what);
    END LOOP;
END
$roles$;

-- part: owner
-- The former owner of the schema, and the role that runs this, become members of the new owner and keep their rights.
DO $owner$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT r.rolname AS name FROM pg_roles r
        WHERE (r.rolname = current_user OR r.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pulse'))
          AND r.rolname <> :'owner' AND NOT r.rolsuper AND NOT pg_has_role(r.oid, :'owner', 'USAGE')
    LOOP
        EXECUTE format('GRANT %I TO %I', :'owner', one.name);
    END LOOP;
    FOR one IN
        SELECT format('ALTER %s %s OWNER TO %I', o.kind, o.name, :'owner') AS statement
        FROM (
            SELECT 1 AS place, 'SCHEMA' AS kind, quote_ident('pulse') AS name, n.nspowner AS owner FROM pg_namespace n WHERE n.nspname = 'pulse'
            UNION ALL
            SELECT 2, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner
            FROM pg_class c
            WHERE c.relnamespace = 'pulse'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
                                AND d.refclassid = 'pg_class'::regclass AND c.relkind = 'S')  -- goes with its column
            UNION ALL
            SELECT 3, 'ROUTINE', p.oid::regprocedure::text, p.proowner FROM pg_proc p WHERE p.pronamespace = 'pulse'::regnamespace
            UNION ALL
            SELECT 4, 'TYPE', t.oid::regtype::text, t.typowner FROM pg_type t
            WHERE t.typnamespace = 'pulse'::regnamespace AND t.typtype IN ('e', 'd')
        ) AS o
        WHERE o.owner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = :'owner')
        ORDER BY o.place, o.name
    LOOP
        EXECUTE one.statement;
    END LOOP;
END
$owner$;

-- part: grants
-- Roles that were granted USAGE by name keep what PUBLIC had: the functions, which run with their caller's rights, and the
-- sequence that holds the time of the last NOTIFY.
DO $guests$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT r.rolname AS name FROM pg_roles r
        WHERE r.rolname NOT IN (:'owner', :'server', :'submit', :'read')
          AND (EXISTS (SELECT FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) AS a WHERE n.nspname = 'pulse' AND a.grantee = r.oid)
            OR EXISTS (SELECT FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
                       WHERE c.relnamespace = 'pulse'::regnamespace AND a.grantee = r.oid)
               AND has_schema_privilege('public', 'pulse', 'USAGE'))
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', 'pulse', one.name);
        EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE %I.work_notified TO %I', 'pulse', one.name);
        EXECUTE (SELECT coalesce(string_agg(format('GRANT EXECUTE ON ROUTINE %s TO %I', p.oid::regprocedure, one.name), '; '), '')
                 FROM pg_proc p WHERE p.pronamespace = 'pulse'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE'));
    END LOOP;
END
$guests$;

REVOKE ALL ON SCHEMA pulse FROM PUBLIC, :"server", :"submit", :"read";
REVOKE ALL ON ALL TABLES IN SCHEMA pulse FROM PUBLIC, :"server", :"submit", :"read";
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pulse FROM PUBLIC, :"server", :"submit", :"read";
REVOKE ALL ON ALL ROUTINES IN SCHEMA pulse FROM PUBLIC, :"server", :"submit", :"read";
GRANT USAGE ON SCHEMA pulse TO :"server", :"submit", :"read";

GRANT SELECT, INSERT, UPDATE, DELETE ON pulse.jobs, pulse.attempts, pulse.schedules, pulse.topics, pulse.set_aside, pulse.limits,
    pulse.outbox TO :"server";
GRANT SELECT, INSERT, UPDATE ON pulse.dispatch_control, pulse.handlers, pulse.hosts TO :"server";
GRANT SELECT, UPDATE ON pulse.sweep_mark, pulse.retention_mark TO :"server";
GRANT SELECT, INSERT, UPDATE (reopened, detail) ON pulse.epochs TO :"server";
GRANT SELECT, INSERT, UPDATE ON pulse.witnesses TO :"server";
GRANT SELECT ON pulse.schema_version, pulse.signals TO :"server";
GRANT SELECT, UPDATE (is_over) ON pulse.dependencies TO :"server";
-- INSERT lets pulse.note trust the operator that the server names; locking rows takes UPDATE of one column, and seq is harmless.
GRANT SELECT, INSERT, UPDATE (id), DELETE ON pulse.audit TO :"server";
GRANT SELECT, UPDATE ON SEQUENCE pulse.work_notified TO :"server";
GRANT EXECUTE ON FUNCTION pulse.add_dependencies, pulse.await_claims, pulse.backoff_s, pulse.count_slots, pulse.delete_schedule, pulse.event_args,
    pulse.insert_unique, pulse.jittered, pulse.note, pulse.notify_work, pulse.resolved_options, pulse.set_limit, pulse.set_topic,
    pulse.settle, pulse.signal, pulse.submit, pulse.tell, pulse.trigger_schedule, pulse.unique_holder, pulse.unset_limit,
    pulse.uuid7, pulse.wait_again TO :"server";

GRANT INSERT (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at, traceparent, group_key,
    unique_key, unique_until, waiting_on, run_after, is_parent) ON pulse.jobs TO :"submit";
GRANT SELECT (name, topic, max_attempts, timeout_s) ON pulse.handlers TO :"submit";
GRANT SELECT (topic, max_attempts, timeout_s, publish) ON pulse.topics TO :"submit";
GRANT SELECT, UPDATE ON SEQUENCE pulse.work_notified TO :"submit";
GRANT EXECUTE ON FUNCTION pulse.submit, pulse.submit_many, pulse.time_problem, pulse.is_stored, pulse.is_stored_unseen,
    pulse.notify_work, pulse.resolved_options, pulse.tell, pulse.uuid7, pulse.check_attempt, pulse.complete_attempt,
    pulse.group_problem, pulse.insert_unique, pulse.unique_holder, pulse.unique_problem, pulse.add_dependencies, pulse.after_problem,
    pulse.signal
    TO :"submit";

GRANT SELECT (id, submitted_at, next_run_at, started_at, lease_until, completed_at, occurrence, expires_at, timeout_s, schedule_id, attempts,
    uncharged, max_attempts, crashes, status, priority, topic, name, locked_by, ran_by, last_error, traceparent, unique_key, unique_until,
    group_key, counted_by, run_after, waiting_on, is_parent, signals, awaited_signal) ON pulse.jobs TO :"read";
GRANT SELECT ON pulse.dependencies TO :"read";
GRANT SELECT (job_id, sent_at, id, name, key) ON pulse.signals TO :"read";
GRANT SELECT (job_id, ended_at, taken_until, attempt, status, topic, name, traceparent, last_error) ON pulse.outbox TO :"read";
GRANT SELECT (job_id, started_at, ended_at, attempt, exit_code, outcome, worker, error, cpu_s, peak_rss_bytes, stack) ON pulse.attempts
    TO :"read";
GRANT SELECT (id, created_at, next_run_at, last_run_at, run_at, every_s, timeout_s, max_attempts, priority, paused, kind, name, topic, cron,
    timezone, following_run_at, starts_at, ends_at, undeclared_at, jitter_s, last_job_id, revision, waiting, reckon, catch_up, overlap,
    key, declared_by, error, due_at, group_key, unique_key, unique_until, on_conflict, skipped_at, skipped_for) ON pulse.schedules TO :"read";
GRANT SELECT ON pulse.dispatch_control, pulse.handlers, pulse.hosts, pulse.topics, pulse.audit, pulse.sweep_mark, pulse.retention_mark,
    pulse.schema_version, pulse.set_aside, pulse.epochs, pulse.witnesses, pulse.limits TO :"read";
