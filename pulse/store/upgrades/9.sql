-- Version 8 to 9. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together. Functions find what they call in pg_catalog alone: not in pulse either, where somebody may have put one of that name.

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

INSERT INTO pulse.schema_version (version) VALUES (9);
