-- Version 3 to 4. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

-- Schedules: the occurrence after the next beforehand, jitter, catch-up, overlap, start and end, keys of declared ones, and
-- functions to make and change them.

-- When an occurrence fires: later by less than jitter_s, the same for whoever reckons it, since it is made of the schedule
-- and the occurrence. pulse_actors.recurrence.jittered_us is the same in Python.
CREATE FUNCTION pulse.jittered(id uuid, occurrence timestamptz, jitter_s float8) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF occurrence IS NULL OR jitter_s = 0 THEN
        RETURN occurrence;
    END IF;
    RETURN occurrence + floor(jitter_s * 1e6 * (('x' || left(md5(id || ' ' || (extract(epoch FROM occurrence) * 1000000)::bigint), 8))::bit(32)::bigint
                                                / 4294967296.0::float8)) * interval '1 microsecond';
END
$$;

ALTER TABLE pulse.schedules
    ADD COLUMN following_run_at timestamptz,
    ADD COLUMN starts_at timestamptz,
    ADD COLUMN ends_at timestamptz,
    ADD COLUMN undeclared_at timestamptz,
    ADD COLUMN jitter_s float8 NOT NULL DEFAULT 0,
    ADD COLUMN last_job_id uuid,
    ADD COLUMN revision int NOT NULL DEFAULT 0,
    ADD COLUMN waiting int NOT NULL DEFAULT 0,
    ADD COLUMN reckon boolean NOT NULL DEFAULT true,
    ADD COLUMN catch_up text NOT NULL DEFAULT 'latest',
    ADD COLUMN overlap text NOT NULL DEFAULT 'allow',
    ADD COLUMN key text,
    ADD COLUMN declared_by text,
    ADD COLUMN error text,
    ADD CONSTRAINT schedules_cron CHECK (cron ~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$'),
    ADD CONSTRAINT schedules_span CHECK (ends_at >= starts_at AND (kind <> 'at' OR (starts_at IS NULL AND ends_at IS NULL))),
    ADD CONSTRAINT schedules_starts_at CHECK (starts_at >= '0001-01-02 00:00+00' AND starts_at < '9999-12-31 00:00+00'),
    ADD CONSTRAINT schedules_ends_at CHECK (ends_at >= '0001-01-02 00:00+00' AND ends_at < '9999-12-31 00:00+00'),
    ADD CONSTRAINT schedules_jitter CHECK (jitter_s >= 0 AND jitter_s <= 86400),
    ADD CONSTRAINT schedules_catch_up CHECK (catch_up IN ('skip', 'latest', 'all')),
    ADD CONSTRAINT schedules_overlap CHECK (overlap IN ('allow', 'skip', 'queue', 'cancel')),
    ADD CONSTRAINT schedules_waiting CHECK (waiting >= 0),
    ADD CONSTRAINT schedules_key CHECK (length(key) BETWEEN 1 AND 200);

-- In a statement of its own: a column is generated from others that are there.
ALTER TABLE pulse.schedules
    ADD COLUMN due_at timestamptz GENERATED ALWAYS AS (pulse.jittered(id, next_run_at, jitter_s)) STORED;

-- What is over must not begin anew.
UPDATE pulse.schedules SET reckon = false WHERE next_run_at IS NULL;

DROP INDEX pulse.idx_schedules_due;
CREATE UNIQUE INDEX idx_schedules_key ON pulse.schedules (key) WHERE key IS NOT NULL;
CREATE INDEX idx_schedules_due ON pulse.schedules (due_at) WHERE next_run_at IS NOT NULL AND NOT paused AND error IS NULL;
CREATE INDEX idx_schedules_reckon ON pulse.schedules (id) WHERE reckon;
CREATE INDEX idx_schedules_waiting ON pulse.schedules (id) WHERE waiting > 0;

-- Schedules from SQL. When the first occurrence comes, the scheduler reckons, within a second and at once where it hears of
-- it; a cron expression that cannot be followed is told in pulse.schedules.error.
CREATE FUNCTION pulse.create_schedule(
    name text, cron text DEFAULT NULL, timezone text DEFAULT NULL, every_s float8 DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, max_attempts int DEFAULT NULL,
    timeout_s float8 DEFAULT NULL, starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL, jitter_s float8 DEFAULT 0,
    catch_up text DEFAULT 'latest', overlap text DEFAULT 'allow', id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made uuid := coalesce(create_schedule.id, pulse.uuid7());
BEGIN
    PERFORM pulse.check_schedule(create_schedule.cron, create_schedule.timezone, create_schedule.every_s, create_schedule.run_at,
        create_schedule.starts_at, create_schedule.ends_at, create_schedule.jitter_s, create_schedule.catch_up, create_schedule.overlap);
    IF num_nonnulls(create_schedule.cron, create_schedule.every_s, create_schedule.run_at) <> 1 THEN
        RAISE EXCEPTION '% of cron, every_s and run_at are given; exactly one is allowed',
            num_nonnulls(create_schedule.cron, create_schedule.every_s, create_schedule.run_at) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO pulse.schedules AS s (id, name, args, topic, kind, cron, timezone, every_s, run_at, priority, max_attempts, timeout_s,
        starts_at, ends_at, jitter_s, catch_up, overlap)
    VALUES (made, create_schedule.name, create_schedule.args, create_schedule.topic,
        CASE WHEN create_schedule.cron IS NOT NULL THEN 'cron' WHEN create_schedule.every_s IS NOT NULL THEN 'every' ELSE 'at' END,
        create_schedule.cron, coalesce(create_schedule.timezone, CASE WHEN create_schedule.cron IS NOT NULL THEN 'UTC' END),
        create_schedule.every_s, create_schedule.run_at, coalesce(create_schedule.priority, 0), create_schedule.max_attempts,
        create_schedule.timeout_s, create_schedule.starts_at, create_schedule.ends_at, coalesce(create_schedule.jitter_s, 0),
        coalesce(create_schedule.catch_up, 'latest'), coalesce(create_schedule.overlap, 'allow'));
    PERFORM pg_notify('pulse_schedules', '');
    RETURN made;
END
$$;

-- Change a schedule: what is NULL stays as it is. Its cursor stays, too, unless when it occurs is changed. False: there is none.
CREATE FUNCTION pulse.update_schedule(
    id uuid, name text DEFAULT NULL, cron text DEFAULT NULL, timezone text DEFAULT NULL, every_s float8 DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, args jsonb DEFAULT NULL, topic text DEFAULT NULL, priority int DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL,
    jitter_s float8 DEFAULT NULL, catch_up text DEFAULT NULL, overlap text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    old     pulse.schedules;
    new     pulse.schedules;
    is_else boolean;
BEGIN
    SELECT s.* INTO old FROM pulse.schedules s WHERE s.id = update_schedule.id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    new := old;
    IF num_nonnulls(update_schedule.cron, update_schedule.every_s, update_schedule.run_at) > 1 THEN
        RAISE EXCEPTION '% of cron, every_s and run_at are given; at most one is allowed',
            num_nonnulls(update_schedule.cron, update_schedule.every_s, update_schedule.run_at) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF num_nonnulls(update_schedule.cron, update_schedule.every_s, update_schedule.run_at) = 1 THEN
        new.cron := update_schedule.cron; new.every_s := update_schedule.every_s; new.run_at := update_schedule.run_at;
        new.kind := CASE WHEN new.cron IS NOT NULL THEN 'cron' WHEN new.every_s IS NOT NULL THEN 'every' ELSE 'at' END;
        new.timezone := CASE WHEN new.kind = 'cron' THEN coalesce(old.timezone, 'UTC') END;
    END IF;
    new.timezone := coalesce(update_schedule.timezone, new.timezone);
    new.starts_at := coalesce(update_schedule.starts_at, old.starts_at);
    new.ends_at := coalesce(update_schedule.ends_at, old.ends_at);
    PERFORM pulse.check_schedule(new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at,
        update_schedule.jitter_s, update_schedule.catch_up, update_schedule.overlap);
    is_else := (new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at)
        IS DISTINCT FROM (old.kind, old.cron, old.timezone, old.every_s, old.run_at, old.starts_at, old.ends_at);
    UPDATE pulse.schedules s
    SET name = coalesce(update_schedule.name, s.name), args = coalesce(update_schedule.args, s.args),
        topic = coalesce(update_schedule.topic, s.topic), priority = coalesce(update_schedule.priority, s.priority),
        max_attempts = coalesce(update_schedule.max_attempts, s.max_attempts), timeout_s = coalesce(update_schedule.timeout_s, s.timeout_s),
        kind = new.kind, cron = new.cron, timezone = new.timezone, every_s = new.every_s, run_at = new.run_at,
        starts_at = new.starts_at, ends_at = new.ends_at, jitter_s = coalesce(update_schedule.jitter_s, s.jitter_s),
        catch_up = coalesce(update_schedule.catch_up, s.catch_up), overlap = coalesce(update_schedule.overlap, s.overlap),
        revision = s.revision + 1, error = NULL,
        next_run_at = CASE WHEN is_else THEN NULL ELSE s.next_run_at END,
        following_run_at = CASE WHEN is_else THEN NULL ELSE s.following_run_at END,
        reckon = is_else OR s.reckon OR s.error IS NOT NULL
    WHERE s.id = update_schedule.id;
    PERFORM pg_notify('pulse_schedules', '');
    RETURN true;
END
$$;

-- One clear line for what a CHECK would refuse less clearly, or could not see at all.
CREATE FUNCTION pulse.check_schedule(
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

-- Fire nothing until pulse.resume_schedule; what was missed then, catch_up decides. False: there is no such schedule.
CREATE FUNCTION pulse.pause_schedule(id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pulse.schedules s SET paused = true WHERE s.id = pause_schedule.id;
    RETURN FOUND;
END
$$;

CREATE FUNCTION pulse.resume_schedule(id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pulse.schedules s SET paused = false WHERE s.id = resume_schedule.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('pulse_schedules', '');
    RETURN true;
END
$$;

-- A job of a schedule now, beside its occurrences, paused or not; NULL: there is no such schedule.
CREATE FUNCTION pulse.trigger_schedule(id uuid, job_id uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made uuid := coalesce(trigger_schedule.job_id, pulse.uuid7());
BEGIN
    IF NOT EXISTS (SELECT FROM pulse.schedules s WHERE s.id = trigger_schedule.id) THEN
        RETURN NULL;
    END IF;
    INSERT INTO pulse.jobs (id, name, args, topic, priority, next_run_at, max_attempts, timeout_s, schedule_id)
    SELECT made, m.name, m.args, coalesce(m.topic, h.topic, 'default'), m.priority, clock_timestamp(),
           coalesce(m.max_attempts, h.max_attempts, t.max_attempts, s.max_attempts),
           coalesce(m.timeout_s, h.timeout_s, t.timeout_s, s.timeout_s), m.id
    FROM pulse.schedules m
    LEFT JOIN pulse.handlers h ON h.name = m.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(m.topic, h.topic, 'default')
    LEFT JOIN pulse.topics s ON s.topic = ''
    WHERE m.id = trigger_schedule.id
    ON CONFLICT (id) DO NOTHING;
    PERFORM pulse.notify_work();
    RETURN made;
END
$$;

-- Remove a schedule. Its jobs stay, but those that are held back behind another one are canceled. False: there is none.
CREATE FUNCTION pulse.delete_schedule(id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pulse.schedules s WHERE s.id = delete_schedule.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE pulse.jobs j SET status = 'CANCELED', completed_at = clock_timestamp()
    WHERE j.schedule_id = delete_schedule.id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00';
    RETURN true;
END
$$;

INSERT INTO pulse.schema_version (version) VALUES (4);
