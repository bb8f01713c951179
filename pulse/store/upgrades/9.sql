-- Version 8 to 9. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together. Functions find what they call in pg_catalog alone: not in pulse either, where somebody may have put one of that name.

DO $functions$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS name FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'pulse'::regnamespace AND p.proconfig IS NOT NULL AND p.prokind = 'f' AND p.proname IN (
            'backoff_s', 'check_schedule', 'checked_priority', 'create_schedule', 'delete_schedule', 'expiry_problem',
            'is_stored', 'is_stored_unseen', 'jittered', 'note', 'notify_work', 'open_gate', 'pause_schedule', 'resume_schedule',
            'set_schedule', 'set_topic', 'submit', 'submit_many', 'tell_topics', 'trigger_schedule', 'update_schedule', 'uuid7')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', one.name);
    END LOOP;
END
$functions$;

INSERT INTO pulse.schema_version (version) VALUES (9);
