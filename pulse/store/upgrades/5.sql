-- Version 4 to 5. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

-- Jitter is no longer than the interval, else occurrences would be due before those before them.
UPDATE pulse.schedules s SET jitter_s = s.every_s, revision = s.revision + 1 WHERE s.jitter_s > s.every_s;
ALTER TABLE pulse.schedules
    DROP CONSTRAINT schedules_jitter,
    ADD CONSTRAINT schedules_jitter CHECK (jitter_s >= 0 AND jitter_s <= least(86400, every_s));

-- What is refused of a schedule is refused in one line that names it, its value and what is allowed.
DROP FUNCTION pulse.check_schedule(text, text, float8, timestamptz, timestamptz, timestamptz, float8, text, text);

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
    PERFORM pulse.checked_priority((changes->>'priority')::int);
    new := jsonb_populate_record(old, changes);
    IF num_nonnulls(new.cron, new.every_s, new.run_at) = 0 THEN
        RAISE EXCEPTION 'none of cron, every_s and run_at is left; exactly one is allowed' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    new.kind := CASE WHEN new.cron IS NOT NULL THEN 'cron' WHEN new.every_s IS NOT NULL THEN 'every' ELSE 'at' END;
    new.timezone := coalesce(new.timezone, CASE new.kind WHEN 'cron' THEN 'UTC' END);
    new.args := coalesce(new.args, '{}');
    new.priority := coalesce(new.priority, 0);
    new.jitter_s := coalesce(new.jitter_s, 0);
    new.catch_up := coalesce(new.catch_up, 'latest');
    new.overlap := coalesce(new.overlap, 'allow');
    PERFORM pulse.check_schedule(new);
    is_else := (new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at)
        IS DISTINCT FROM (old.kind, old.cron, old.timezone, old.every_s, old.run_at, old.starts_at, old.ends_at);
    UPDATE pulse.schedules s
    SET name = new.name, args = new.args, topic = new.topic, priority = new.priority, max_attempts = new.max_attempts,
        timeout_s = new.timeout_s, kind = new.kind, cron = new.cron, timezone = new.timezone, every_s = new.every_s,
        run_at = new.run_at, starts_at = new.starts_at, ends_at = new.ends_at, jitter_s = new.jitter_s,
        catch_up = new.catch_up, overlap = new.overlap, revision = s.revision + 1, error = NULL,
        next_run_at = CASE WHEN is_else THEN NULL ELSE s.next_run_at END,
        following_run_at = CASE WHEN is_else THEN NULL ELSE s.following_run_at END,
        reckon = is_else OR s.reckon OR s.error IS NOT NULL OR new.jitter_s > s.jitter_s  -- of cron it may be too long
    WHERE s.id = set_schedule.id;
    PERFORM pg_notify('pulse_schedules', '');
    RETURN true;
END
$$;

-- A priority as the columns hold it: what is no smallint could not be told of by pulse.check_schedule any more.
CREATE FUNCTION pulse.checked_priority(priority int) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    IF priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'priority is %; -100 to 100 is allowed', priority USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN priority;
END
$$;

-- Schedules from SQL. When the first occurrence comes, the scheduler reckons, within a second and at once where it hears of
-- it; a cron expression that cannot be followed is told in pulse.schedules.error.
CREATE OR REPLACE FUNCTION pulse.create_schedule(
    name text, cron text DEFAULT NULL, timezone text DEFAULT NULL, every_s float8 DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, max_attempts int DEFAULT NULL,
    timeout_s float8 DEFAULT NULL, starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL, jitter_s float8 DEFAULT 0,
    catch_up text DEFAULT 'latest', overlap text DEFAULT 'allow', id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    new pulse.schedules;
BEGIN
    IF num_nonnulls(create_schedule.cron, create_schedule.every_s, create_schedule.run_at) <> 1 THEN
        RAISE EXCEPTION '% of cron, every_s and run_at are given; exactly one is allowed',
            num_nonnulls(create_schedule.cron, create_schedule.every_s, create_schedule.run_at) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    new.id := coalesce(create_schedule.id, pulse.uuid7());
    new.name := create_schedule.name; new.args := create_schedule.args; new.topic := create_schedule.topic;
    new.cron := create_schedule.cron; new.every_s := create_schedule.every_s; new.run_at := create_schedule.run_at;
    new.kind := CASE WHEN new.cron IS NOT NULL THEN 'cron' WHEN new.every_s IS NOT NULL THEN 'every' ELSE 'at' END;
    new.timezone := coalesce(create_schedule.timezone, CASE WHEN new.kind = 'cron' THEN 'UTC' END);
    new.priority := pulse.checked_priority(coalesce(create_schedule.priority, 0));
    new.max_attempts := create_schedule.max_attempts; new.timeout_s := create_schedule.timeout_s;
    new.starts_at := create_schedule.starts_at; new.ends_at := create_schedule.ends_at;
    new.jitter_s := coalesce(create_schedule.jitter_s, 0);
    new.catch_up := coalesce(create_schedule.catch_up, 'latest'); new.overlap := coalesce(create_schedule.overlap, 'allow');
    PERFORM pulse.check_schedule(new);
    INSERT INTO pulse.schedules AS s (id, name, args, topic, kind, cron, timezone, every_s, run_at, priority, max_attempts, timeout_s,
        starts_at, ends_at, jitter_s, catch_up, overlap)
    VALUES (new.id, new.name, new.args, new.topic, new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.priority,
        new.max_attempts, new.timeout_s, new.starts_at, new.ends_at, new.jitter_s, new.catch_up, new.overlap);
    PERFORM pg_notify('pulse_schedules', '');
    RETURN new.id;
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
CREATE FUNCTION pulse.check_schedule(s pulse.schedules) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pulse, pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    IF s.kind = 'cron' THEN
        BEGIN
            PERFORM now() AT TIME ZONE s.timezone;
        EXCEPTION WHEN invalid_parameter_value THEN
            wrong := format('timezone is %L; an IANA name such as Europe/Berlin is allowed', left(s.timezone, 100));
        END;
    END IF;
    wrong := coalesce(wrong, CASE
        WHEN s.timezone IS NOT NULL AND s.cron IS NULL THEN format('timezone is %L; it is allowed with cron only', left(s.timezone, 100))
        WHEN s.cron !~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$'
            THEN format('cron is %L; five fields are allowed (minute hour day month weekday), or six with seconds first', left(s.cron, 100))
        WHEN s.every_s < 0.1 OR s.every_s > 1e9 THEN format('every_s is %s; 0.1 to 1e9 s is allowed', s.every_s)
        WHEN s.jitter_s < 0 OR s.jitter_s > 86400 THEN format('jitter_s is %s; 0 to 86400 s is allowed', s.jitter_s)
        WHEN s.jitter_s > s.every_s THEN format('jitter_s is %s; at most the interval, %s s, is allowed', s.jitter_s, s.every_s)
        WHEN s.run_at IS NOT NULL AND num_nonnulls(s.starts_at, s.ends_at) > 0
            THEN 'starts_at or ends_at is given; they are allowed with cron and every_s only'
        WHEN s.ends_at < s.starts_at
            THEN format('ends_at is %s, before starts_at, %s; a time from starts_at on is allowed', s.ends_at, s.starts_at)
        WHEN s.catch_up NOT IN ('skip', 'latest', 'all') THEN format('catch_up is %L; allowed are skip, latest, all', left(s.catch_up, 100))
        WHEN s.overlap NOT IN ('allow', 'skip', 'queue', 'cancel')
            THEN format('overlap is %L; allowed are allow, skip, queue, cancel', left(s.overlap, 100))
        WHEN s.name IS NULL OR length(s.name) NOT BETWEEN 1 AND 200
            THEN format('name is %L; 1 to 200 characters are allowed', left(s.name, 100))
        WHEN length(s.topic) NOT BETWEEN 1 AND 200 THEN format('topic is %L; 1 to 200 characters are allowed', left(s.topic, 100))
        WHEN jsonb_typeof(s.args) IS DISTINCT FROM 'object'
            THEN format('args must be a JSON object, not %s', coalesce(jsonb_typeof(s.args), 'NULL'))
        WHEN s.max_attempts NOT BETWEEN 1 AND 10000 THEN format('max_attempts is %s; 1 to 10000 is allowed', s.max_attempts)
        WHEN NOT (s.timeout_s > 0 AND s.timeout_s <= 1e9)
            THEN format('timeout_s is %s; seconds above 0, at most 1e9, are allowed', s.timeout_s)
        ELSE (SELECT format('%s is %s; a time of the years 1 to 9999 is allowed', t.what, t.at)
              FROM (VALUES ('run_at', s.run_at), ('starts_at', s.starts_at), ('ends_at', s.ends_at)) AS t(what, at)
              WHERE NOT (t.at >= '0001-01-02 00:00+00' AND t.at < '9999-12-31 00:00+00') LIMIT 1)
        END);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

INSERT INTO pulse.schema_version (version) VALUES (5);
