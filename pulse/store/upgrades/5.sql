-- Version 4 to 5. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

-- Jitter is no longer than the interval, else occurrences would be due before those before them.
UPDATE pulse.schedules s SET jitter_s = s.every_s, revision = s.revision + 1 WHERE s.jitter_s > s.every_s;
ALTER TABLE pulse.schedules
    DROP CONSTRAINT schedules_jitter,
    ADD CONSTRAINT schedules_jitter CHECK (jitter_s >= 0 AND jitter_s <= least(86400, every_s));

-- Change a schedule, as far as options are named: a value sets one, null makes it as if it had never been given. One of cron,
-- every_s and run_at takes the place of the one before. The cursor stays, unless when it occurs is changed. False: there is none.
CREATE FUNCTION pulse.set_schedule(id uuid, changes jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
DECLARE
    every   constant text[] := ARRAY['name', 'cron', 'timezone', 'every_s', 'run_at', 'args', 'topic', 'priority', 'max_attempts',
                                     'timeout_s', 'starts_at', 'ends_at', 'jitter_s', 'catch_up', 'overlap'];
    given   int := num_nonnulls(changes->>'cron', changes->>'every_s', changes->>'run_at');
    bad     text;
    old     pulse.schedules;
    new     pulse.schedules;
    is_else boolean;
BEGIN
    IF jsonb_typeof(changes) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the changes of a schedule must be a JSON object of options, not %', coalesce(jsonb_typeof(changes), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT key INTO bad FROM jsonb_object_keys(changes) AS key WHERE key <> ALL (every) ORDER BY key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%" of a schedule; allowed are %', left(bad, 50), array_to_string(every, ', ')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF given > 1 THEN
        RAISE EXCEPTION '% of cron, every_s and run_at are given; at most one is allowed', given USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.* INTO old FROM pulse.schedules s WHERE s.id = set_schedule.id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF given = 1 THEN
        changes := CASE WHEN changes->>'cron' IS NULL THEN '{"cron": null, "every_s": null, "run_at": null, "timezone": null}'::jsonb
                        ELSE '{"every_s": null, "run_at": null}' END || changes;
    END IF;
    new := jsonb_populate_record(old, changes);
    IF num_nonnulls(new.cron, new.every_s, new.run_at) = 0 THEN
        RAISE EXCEPTION 'none of cron, every_s and run_at is left; exactly one is allowed' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF new.name IS NULL THEN
        RAISE EXCEPTION 'name is null; 1 to 200 characters are allowed' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    new.kind := CASE WHEN new.cron IS NOT NULL THEN 'cron' WHEN new.every_s IS NOT NULL THEN 'every' ELSE 'at' END;
    new.timezone := coalesce(new.timezone, CASE new.kind WHEN 'cron' THEN 'UTC' END);
    new.args := coalesce(new.args, '{}');
    new.priority := coalesce(new.priority, 0);
    new.jitter_s := coalesce(new.jitter_s, 0);
    new.catch_up := coalesce(new.catch_up, 'latest');
    new.overlap := coalesce(new.overlap, 'allow');
    PERFORM pulse.check_schedule(new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at, new.jitter_s,
        new.catch_up, new.overlap);
    is_else := (new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at)
        IS DISTINCT FROM (old.kind, old.cron, old.timezone, old.every_s, old.run_at, old.starts_at, old.ends_at);
    UPDATE pulse.schedules s
    SET name = new.name, args = new.args, topic = new.topic, priority = new.priority, max_attempts = new.max_attempts,
        timeout_s = new.timeout_s, kind = new.kind, cron = new.cron, timezone = new.timezone, every_s = new.every_s,
        run_at = new.run_at, starts_at = new.starts_at, ends_at = new.ends_at, jitter_s = new.jitter_s,
        catch_up = new.catch_up, overlap = new.overlap, revision = s.revision + 1, error = NULL,
        next_run_at = CASE WHEN is_else THEN NULL ELSE s.next_run_at END,
        following_run_at = CASE WHEN is_else THEN NULL ELSE s.following_run_at END,
        reckon = is_else OR s.reckon OR s.error IS NOT NULL OR new.jitter_s <> old.jitter_s  -- of cron it may be too long
    WHERE s.id = set_schedule.id;
    PERFORM pg_notify('pulse_schedules', '');
    RETURN true;
END
$$;

-- The same with a parameter for each option: what is NULL stays as it is.
CREATE OR REPLACE FUNCTION pulse.update_schedule(
    id uuid, name text DEFAULT NULL, cron text DEFAULT NULL, timezone text DEFAULT NULL, every_s float8 DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, args jsonb DEFAULT NULL, topic text DEFAULT NULL, priority int DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL,
    jitter_s float8 DEFAULT NULL, catch_up text DEFAULT NULL, overlap text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
DECLARE
    changes jsonb := jsonb_build_object('name', name, 'cron', cron, 'timezone', timezone, 'every_s', every_s, 'run_at', run_at,
        'args', args, 'topic', topic, 'priority', priority, 'max_attempts', max_attempts, 'timeout_s', timeout_s,
        'starts_at', starts_at, 'ends_at', ends_at, 'jitter_s', jitter_s, 'catch_up', catch_up, 'overlap', overlap);
BEGIN
    RETURN pulse.set_schedule(id, (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(changes) WHERE value <> 'null'));
END
$$;

-- One clear line for what a CHECK would refuse less clearly, or could not see at all.
CREATE OR REPLACE FUNCTION pulse.check_schedule(
    cron text, timezone text, every_s float8, run_at timestamptz, starts_at timestamptz, ends_at timestamptz, jitter_s float8,
    catch_up text, overlap text
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pulse, pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    IF timezone IS NOT NULL AND cron IS NOT NULL THEN
        BEGIN
            PERFORM now() AT TIME ZONE timezone;
        EXCEPTION WHEN invalid_parameter_value THEN
            wrong := format('timezone is %L; an IANA name such as Europe/Berlin is allowed', left(timezone, 100));
        END;
    END IF;
    wrong := coalesce(wrong, CASE
        WHEN timezone IS NOT NULL AND cron IS NULL THEN format('timezone is %L; it is allowed with cron only', left(timezone, 100))
        WHEN cron !~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$'
            THEN format('cron is %L; five fields are allowed (minute hour day month weekday), or six with seconds first', left(cron, 100))
        WHEN every_s < 0.1 OR every_s > 1e9 THEN format('every_s is %s; 0.1 to 1e9 s is allowed', every_s)
        WHEN jitter_s < 0 OR jitter_s > 86400 THEN format('jitter_s is %s; 0 to 86400 s is allowed', jitter_s)
        WHEN jitter_s > every_s THEN format('jitter_s is %s; at most the interval, %s s, is allowed', jitter_s, every_s)
        WHEN run_at IS NOT NULL AND num_nonnulls(starts_at, ends_at) > 0
            THEN 'starts_at or ends_at is given; they are allowed with cron and every_s only'
        WHEN ends_at < starts_at
            THEN format('ends_at is %s, before starts_at, %s; a time from starts_at on is allowed', ends_at, starts_at)
        WHEN catch_up NOT IN ('skip', 'latest', 'all') THEN format('catch_up is %L; allowed are skip, latest, all', left(catch_up, 100))
        WHEN overlap NOT IN ('allow', 'skip', 'queue', 'cancel')
            THEN format('overlap is %L; allowed are allow, skip, queue, cancel', left(overlap, 100))
        END);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

INSERT INTO pulse.schema_version (version) VALUES (5);
