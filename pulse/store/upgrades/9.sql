-- Version 8 to 9. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together. Functions find what they call in pg_catalog alone: not in pulse either, where somebody may have put one of that name.
-- Args that nobody could be handed are refused.

DO $functions$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS name FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'pulse'::regnamespace AND p.proconfig IS NOT NULL
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', one.name);
    END LOOP;
END
$functions$;

-- Args that no worker could be handed are refused where they come from, and not when they are to be claimed: a job whose args take
-- too long to print, with all that is due beside it. jsonb prints all digits of a number; the limit is that of a frame.
CREATE FUNCTION pulse.refuse_args() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'args have % bytes as PostgreSQL prints them; at most 8372224 are allowed', octet_length(NEW.args::text)
        USING ERRCODE = 'check_violation', SCHEMA = 'pulse', TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END
$$;

-- Not of an UPDATE: each would lock its row twice.
CREATE TRIGGER jobs_args_fit BEFORE INSERT ON pulse.jobs
    FOR EACH ROW WHEN (octet_length(NEW.args::text) > 8372224) EXECUTE FUNCTION pulse.refuse_args();
CREATE TRIGGER schedules_args_fit BEFORE INSERT OR UPDATE OF args ON pulse.schedules
    FOR EACH ROW WHEN (octet_length(NEW.args::text) > 8372224) EXECUTE FUNCTION pulse.refuse_args();

-- A schedule whose args are refused from now on would fail with all that are due beside it.
DO $schedules$
DECLARE
    one record;
BEGIN
    FOR one IN
        UPDATE pulse.schedules s SET paused = true WHERE NOT s.paused AND octet_length(s.args::text) > 8372224
        RETURNING s.id, s.name
    LOOP
        RAISE WARNING 'schedule % (%) is paused: its args have more than 8372224 bytes', one.id, one.name;
    END LOOP;
END
$schedules$;

INSERT INTO pulse.schema_version (version) VALUES (9);
