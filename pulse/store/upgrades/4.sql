-- Version 3 to 4. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

-- Policy of topics, pause with who and until when, expiry of jobs.

ALTER TABLE pulse.jobs
    ADD COLUMN expires_at timestamptz,
    ADD CONSTRAINT jobs_expires_at CHECK (expires_at >= '0001-01-02 00:00+00' AND expires_at < '9999-12-31 00:00+00');
CREATE INDEX idx_jobs_expiry ON pulse.jobs (expires_at) WHERE expires_at IS NOT NULL AND status IN ('PENDING', 'RETRYING');
CREATE INDEX idx_jobs_held ON pulse.jobs (schedule_id, occurrence) WHERE status = 'PENDING' AND next_run_at = '9999-12-30 00:00+00';

ALTER TABLE pulse.dispatch_control
    ADD COLUMN paused_by text,
    ADD COLUMN paused_until timestamptz,
    ADD CONSTRAINT dispatch_control_open CHECK (paused OR (paused_by IS NULL AND paused_until IS NULL)),
    ADD CONSTRAINT dispatch_control_until CHECK (paused_until >= '0001-01-02 00:00+00' AND paused_until < '9999-12-31 00:00+00');

-- Who opens a gate need not know of all that was said of the pause: what stayed would end the next one.
CREATE FUNCTION pulse.open_gate() RETURNS trigger
LANGUAGE plpgsql SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    NEW.paused_by := NULL;
    NEW.paused_until := NULL;
    RETURN NEW;
END
$$;

CREATE TRIGGER gate_opened BEFORE UPDATE ON pulse.dispatch_control
    FOR EACH ROW WHEN (NOT NEW.paused) EXECUTE FUNCTION pulse.open_gate();

ALTER TABLE pulse.handlers
    ADD COLUMN backoff text CONSTRAINT handlers_backoff CHECK (length(backoff) <= 500 AND backoff ~
        '^(quadratic(:\d{1,9}(\.\d{1,6})?)?|exponential(:\d{1,9}(\.\d{1,6})?){0,2}|fixed:\d{1,9}(\.\d{1,6})?|list:\d{1,9}(\.\d{1,6})?(,\d{1,9}(\.\d{1,6})?)*)$');

ALTER TABLE pulse.topics
    ADD COLUMN stall_s float8 CHECK (stall_s > 0 AND stall_s <= 1e9),
    ADD COLUMN lease_s float8 CHECK (lease_s > 0 AND lease_s <= 1e9),
    ADD COLUMN retention_s float8 CHECK (retention_s >= 0 AND retention_s <= 1e9),
    ADD COLUMN retention_dead_s float8 CHECK (retention_dead_s >= 0 AND retention_dead_s <= 1e9),
    ADD COLUMN ageing_s float8 CHECK (ageing_s >= 0 AND ageing_s <= 1e9),
    ADD COLUMN backoff text CONSTRAINT topics_backoff CHECK (length(backoff) <= 500 AND backoff ~
        '^(quadratic(:\d{1,9}(\.\d{1,6})?)?|exponential(:\d{1,9}(\.\d{1,6})?){0,2}|fixed:\d{1,9}(\.\d{1,6})?|list:\d{1,9}(\.\d{1,6})?(,\d{1,9}(\.\d{1,6})?)*)$');

-- Empty where nobody uses what they are about: then the hot statements look once, and pay for nothing else.
CREATE INDEX idx_topics_backoff ON pulse.topics (topic) WHERE backoff IS NOT NULL;
CREATE INDEX idx_handlers_backoff ON pulse.handlers (name) WHERE backoff IS NOT NULL;
CREATE INDEX idx_topics_lease ON pulse.topics (topic) WHERE lease_s IS NOT NULL;
CREATE INDEX idx_topics_live ON pulse.topics (topic)
    WHERE stall_s IS NOT NULL OR lease_s IS NOT NULL OR retention_s IS NOT NULL OR retention_dead_s IS NOT NULL OR ageing_s IS NOT NULL;

-- Seconds to wait after charged try number tries (the first is 1). Exponential waits are drawn between half and the whole
-- of FIRST * 2 ^ (tries - 1), LONGEST at most, so that what failed together does not come back together.
CREATE FUNCTION pulse.backoff_s(policy text, tries int) RETURNS float8
LANGUAGE sql VOLATILE STRICT SET search_path = pulse, pg_catalog, pg_temp AS $$
    SELECT CASE split_part(policy, ':', 1)
        WHEN 'fixed' THEN split_part(policy, ':', 2)::float8
        WHEN 'list' THEN (SELECT d[least(greatest(tries, 1), cardinality(d))]::float8
                          FROM string_to_array(split_part(policy, ':', 2), ',') AS d)
        WHEN 'exponential' THEN (0.5 + random() / 2) * least(
            coalesce(nullif(split_part(policy, ':', 3), '')::float8, 3600),
            coalesce(nullif(split_part(policy, ':', 2), '')::float8, 1) * 2 ^ least(greatest(tries, 1) - 1, 40))
        ELSE least(coalesce(nullif(split_part(policy, ':', 2), '')::float8, 1) * tries::float8 ^ 2, 1e9) END
$$;

-- Whoever keeps a part of the policies in memory reads it again.
CREATE FUNCTION pulse.tell_topics() RETURNS trigger
LANGUAGE plpgsql SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('pulse_gate', 'topics');
    RETURN NULL;
END
$$;

CREATE TRIGGER topics_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON pulse.topics
    FOR EACH STATEMENT EXECUTE FUNCTION pulse.tell_topics();

-- Change options of a topic's policy, those that are named: a value sets one, null unsets it. The row of a topic that has
-- none left is deleted. In '' are the server's own, as far as they are no settings of it.
CREATE FUNCTION pulse.set_topic(topic text, policy jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mine  constant text[] := ARRAY['timeout_s', 'stall_s'];
    every constant text[] := ARRAY['max_attempts', 'max_crashes', 'timeout_s', 'stall_s', 'lease_s', 'retention_s',
                                   'retention_dead_s', 'ageing_s', 'backoff'];
    named text := CASE topic WHEN '' THEN 'the server' ELSE format('topic "%s"', left(topic, 50)) END;
    bad   record;
BEGIN
    IF topic IS NULL OR length(topic) > 200 THEN
        RAISE EXCEPTION 'topic is %; up to 200 characters are allowed ("" for the server)', coalesce(quote_literal(left(topic, 50)), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(policy) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the policy of % must be a JSON object of options, not %', named, coalesce(jsonb_typeof(policy), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT key, value INTO bad FROM jsonb_each(policy) WHERE key <> ALL (every) ORDER BY key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%" of %; allowed are %', left(bad.key, 50), named, array_to_string(every, ', ')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT key, value INTO bad FROM jsonb_each(policy) WHERE topic = '' AND key <> ALL (mine) ORDER BY key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% of the server is a setting of it; here % are allowed', bad.key, array_to_string(mine, ', ')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT e.key, e.value, r.allowed INTO bad
    FROM jsonb_each(policy) AS e
    JOIN (VALUES ('max_attempts', 1, 10000, true, 'a whole number from 1 to 10000 is'),
                 ('max_crashes', 1, 10000, true, 'a whole number from 1 to 10000 is'),
                 ('timeout_s', 1e-300, 1e9, false, 'seconds above 0, at most 1e9, are'),
                 ('stall_s', 1e-300, 1e9, false, 'seconds above 0, at most 1e9, are'),
                 ('lease_s', 1e-300, 1e9, false, 'seconds above 0, at most 1e9, are'),
                 ('retention_s', 0, 1e9, false, 'seconds, 0 or more, at most 1e9, are'),
                 ('retention_dead_s', 0, 1e9, false, 'seconds, 0 or more, at most 1e9, are'),
                 ('ageing_s', 0, 1e9, false, 'seconds, 0 or more, at most 1e9, are'))
        AS r(key, least, most, whole, allowed) ON r.key = e.key
    WHERE jsonb_typeof(e.value) <> 'null'
      AND NOT CASE WHEN jsonb_typeof(e.value) = 'number'
                   THEN e.value::numeric BETWEEN r.least AND r.most AND (NOT r.whole OR e.value::numeric = trunc(e.value::numeric)) ELSE false END
    ORDER BY e.key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% of % is %; % allowed', bad.key, named, left(bad.value::text, 50), bad.allowed
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    BEGIN
        INSERT INTO pulse.topics AS t (topic, max_attempts, max_crashes, timeout_s, stall_s, lease_s, retention_s, retention_dead_s,
                                       ageing_s, backoff)
        SELECT set_topic.topic, coalesce((p.max_attempts)::int, s.max_attempts), coalesce((p.max_crashes)::int, s.max_crashes),
               p.timeout_s, p.stall_s, p.lease_s, p.retention_s, p.retention_dead_s, p.ageing_s, p.backoff
        FROM jsonb_to_record(policy) AS p(max_attempts numeric, max_crashes numeric, timeout_s float8, stall_s float8, lease_s float8,
                                          retention_s float8, retention_dead_s float8, ageing_s float8, backoff text)
        LEFT JOIN pulse.topics s ON s.topic = '' AND set_topic.topic = ''
        ON CONFLICT (topic) DO UPDATE SET
            max_attempts = CASE WHEN policy ? 'max_attempts' THEN excluded.max_attempts ELSE t.max_attempts END,
            max_crashes = CASE WHEN policy ? 'max_crashes' THEN excluded.max_crashes ELSE t.max_crashes END,
            timeout_s = CASE WHEN policy ? 'timeout_s' THEN excluded.timeout_s ELSE t.timeout_s END,
            stall_s = CASE WHEN policy ? 'stall_s' THEN excluded.stall_s ELSE t.stall_s END,
            lease_s = CASE WHEN policy ? 'lease_s' THEN excluded.lease_s ELSE t.lease_s END,
            retention_s = CASE WHEN policy ? 'retention_s' THEN excluded.retention_s ELSE t.retention_s END,
            retention_dead_s = CASE WHEN policy ? 'retention_dead_s' THEN excluded.retention_dead_s ELSE t.retention_dead_s END,
            ageing_s = CASE WHEN policy ? 'ageing_s' THEN excluded.ageing_s ELSE t.ageing_s END,
            backoff = CASE WHEN policy ? 'backoff' THEN excluded.backoff ELSE t.backoff END;
    EXCEPTION WHEN check_violation THEN  -- all else was looked at above
        RAISE EXCEPTION 'backoff of % is %; allowed are quadratic[:UNIT], exponential[:FIRST[:LONGEST]], fixed:SECONDS, '
            'list:SECONDS,SECONDS,... with seconds from 0 to 999999999', named, left((policy->'backoff')::text, 80)
            USING ERRCODE = 'invalid_parameter_value';
    END;
    DELETE FROM pulse.topics t
    WHERE t.topic = set_topic.topic
      AND num_nonnulls(t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s,
                       t.backoff) = 0;
END
$$;

-- What is wrong with a job's expiry, in one line; NULL: nothing. One that is over already is right: a submit whose answer
-- was lost is repeated as it was.
CREATE FUNCTION pulse.expiry_problem(run_at timestamptz, expires_at timestamptz, expires_in_s float8) RETURNS text
LANGUAGE sql STABLE SET search_path = pulse, pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN expires_in_s IS NOT NULL AND expires_at IS NOT NULL THEN 'expires_at and expires_in_s are both given; one of them is allowed'
        WHEN NOT (expires_in_s > 0 AND expires_in_s <= 1e9) THEN
            format('expires_in_s is %s; seconds above 0, at most 1e9, are allowed', expires_in_s)
        WHEN expires_at <= run_at THEN format('expires_at is %s; a time after run_at (%s) is allowed', expires_at, run_at) END
$$;

-- The new one takes more, so it is another function: whoever may call the old one may call it, too.
SELECT set_config('pulse.rights', coalesce(proacl::text, ''), true) FROM pg_proc
WHERE oid = 'pulse.submit(text, jsonb, text, int, timestamptz, int, float8, uuid)'::regprocedure;
DROP FUNCTION pulse.submit(text, jsonb, text, int, timestamptz, int, float8, uuid);

-- Submit many jobs from SQL: a JSON array of objects with the keys of pulse.submit. Returns the ids in the same order.
-- All or none. The n-th job of one call is due n microseconds after the first: submit order is run order.
CREATE OR REPLACE FUNCTION pulse.submit_many(jobs jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    made  uuid[];
    fresh bigint;
    bad   text;
BEGIN
    IF jobs IS NULL OR jsonb_typeof(jobs) <> 'array' THEN
        RAISE EXCEPTION 'jobs must be a JSON array of objects, not %', coalesce(jsonb_typeof(jobs), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT jsonb_typeof(job) INTO bad FROM jsonb_array_elements(jobs) AS job WHERE jsonb_typeof(job) <> 'object' LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobs must be a JSON array of objects, and one of them is of type %', bad
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT k INTO bad FROM jsonb_array_elements(jobs) AS job, jsonb_object_keys(job) AS k
        WHERE k <> ALL (ARRAY['name', 'args', 'topic', 'priority', 'run_at', 'max_attempts', 'timeout_s', 'id', 'expires_at',
                            'expires_in_s']) LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'unknown key "%" in a job; allowed are name, args, topic, priority, run_at, max_attempts, timeout_s, id, expires_at, expires_in_s', bad
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT pulse.expiry_problem(g.run_at, g.expires_at, g.expires_in_s) INTO bad
    FROM jsonb_array_elements(jobs) AS e(job)
    CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(run_at timestamptz, expires_at timestamptz, expires_in_s float8)
    WHERE e.job ?| ARRAY['expires_at', 'expires_in_s'] AND pulse.expiry_problem(g.run_at, g.expires_at, g.expires_in_s) IS NOT NULL
    LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
    END IF;

    WITH given AS MATERIALIZED (
        SELECT coalesce(g.id, pulse.uuid7()) AS id, g.name, coalesce(g.args, '{}') AS args, g.topic, coalesce(g.priority, 0) AS priority,
               g.run_at, g.max_attempts, g.timeout_s, coalesce(g.expires_at, began + g.expires_in_s * interval '1 second') AS expires_at,
               e.place
        FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(
            id uuid, name text, args jsonb, topic text, priority smallint, run_at timestamptz, max_attempts int, timeout_s float8,
            expires_at timestamptz, expires_in_s float8)
    ), put AS (
        INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at)
        SELECT g.id, g.name, coalesce(g.topic, h.topic, 'default'), g.args, g.priority,
               coalesce(g.run_at, began) + (g.place - 1) * interval '1 microsecond',
               coalesce(g.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')),
               coalesce(g.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')), g.expires_at
        FROM given g
        LEFT JOIN pulse.handlers h ON h.name = g.name
        LEFT JOIN pulse.topics t ON t.topic = coalesce(g.topic, h.topic, 'default')
        ORDER BY g.id
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    )
    SELECT array_agg(g.id ORDER BY g.place), (SELECT count(*) FROM put) INTO made, fresh FROM given g;

    -- An id that was there already is the same job when name, topic and args are the same, and a conflict otherwise.
    IF fresh < cardinality(made) THEN
        SELECT g.id::text INTO bad
        FROM jsonb_array_elements(jobs) AS e(job)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(id uuid, name text, args jsonb, topic text)
        LEFT JOIN pulse.handlers h ON h.name = g.name
        LEFT JOIN pulse.jobs j ON j.id = g.id
        WHERE g.id IS NOT NULL
          AND (j.id IS NULL OR j.name <> g.name OR j.topic <> coalesce(g.topic, h.topic, 'default') OR j.args <> coalesce(g.args, '{}'))
        LIMIT 1;
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION 'job % exists already with another name, topic or args', bad USING ERRCODE = 'unique_violation';
        END IF;
    END IF;
    IF fresh > 0 THEN
        PERFORM pulse.notify_work();
    END IF;
    RETURN QUERY SELECT unnest(made);
END
$$;

-- Submit one job from SQL, in any language, inside the caller's own transaction. Returns its id.
-- NULL means: the handler, else the topic, else the server decides. The same id with the same name, topic and args is the
-- same job, so a submit whose answer was lost can be repeated.
CREATE FUNCTION pulse.submit(
    name text, args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, id uuid DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    expires_in_s float8 DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made uuid := coalesce(submit.id, pulse.uuid7());
    done uuid;
    bad  text;
BEGIN
    IF submit.name IS NULL OR length(submit.name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'name is %; 1 to 200 characters are allowed', coalesce(quote_literal(left(submit.name, 50)), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(submit.args) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'args must be a JSON object, not %', coalesce(jsonb_typeof(submit.args), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF submit.priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'priority is %; -100 to 100 is allowed', submit.priority USING ERRCODE = 'invalid_parameter_value';
    END IF;

    bad := pulse.expiry_problem(submit.run_at, submit.expires_at, submit.expires_in_s);
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
    END IF;

    INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at)
    SELECT made, submit.name, coalesce(submit.topic, h.topic, 'default'), submit.args, coalesce(submit.priority, 0),
           coalesce(submit.run_at, clock_timestamp()),
           coalesce(submit.max_attempts, h.max_attempts, t.max_attempts, s.max_attempts),
           coalesce(submit.timeout_s, h.timeout_s, t.timeout_s, s.timeout_s),
           coalesce(submit.expires_at, clock_timestamp() + submit.expires_in_s * interval '1 second')
    FROM (VALUES (1)) AS one
    LEFT JOIN pulse.handlers h ON h.name = submit.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(submit.topic, h.topic, 'default')
    LEFT JOIN pulse.topics s ON s.topic = ''
    ON CONFLICT (id) DO NOTHING
    RETURNING jobs.id INTO done;

    IF done IS NOT NULL THEN
        PERFORM pulse.notify_work();
    ELSIF NOT EXISTS (
        SELECT FROM pulse.jobs j LEFT JOIN pulse.handlers h ON h.name = submit.name
        WHERE j.id = made AND j.name = submit.name AND j.args = submit.args
          AND j.topic = coalesce(submit.topic, h.topic, 'default')
    ) THEN
        RAISE EXCEPTION 'job % exists already with another name, topic or args', made USING ERRCODE = 'unique_violation';
    END IF;
    RETURN made;
END
$$;

DO $rights$
DECLARE
    role  text;
    whole text := (SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace AND proname = 'submit');
BEGIN
    IF current_setting('pulse.rights') = '' THEN
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', whole);
    FOR role IN SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
                FROM aclexplode(current_setting('pulse.rights')::aclitem[]) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', whole, role);
    END LOOP;
END
$rights$;

-- End of: policy of topics, pause, expiry.

-- Schedules: the occurrence after the next beforehand, jitter, catch-up, overlap, start and end, keys of declared ones, and
-- functions to make and change them.

-- When an occurrence fires: later by less than jitter_s, the same for whoever reckons it, since it is made of the schedule
-- and the occurrence. pulse_actors.shared.recurrence.jittered_us is the same in Python.
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
    ADD CONSTRAINT schedules_span CHECK (ends_at >= starts_at AND (kind <> 'at' OR (starts_at IS NULL AND ends_at IS NULL))),
    ADD CONSTRAINT schedules_starts_at CHECK (starts_at >= '0001-01-02 00:00+00' AND starts_at < '9999-12-31 00:00+00'),
    ADD CONSTRAINT schedules_ends_at CHECK (ends_at >= '0001-01-02 00:00+00' AND ends_at < '9999-12-31 00:00+00'),
    ADD CONSTRAINT schedules_jitter CHECK (jitter_s >= 0 AND jitter_s <= 86400),
    ADD CONSTRAINT schedules_catch_up CHECK (catch_up IN ('skip', 'latest', 'all')),
    ADD CONSTRAINT schedules_overlap CHECK (overlap IN ('allow', 'skip', 'queue', 'cancel')),
    ADD CONSTRAINT schedules_waiting CHECK (waiting >= 0),
    ADD CONSTRAINT schedules_key CHECK (length(key) BETWEEN 1 AND 200);

-- A rule that SQL made and nobody could follow stays as it is; new ones are held against it.
DO $rule$
BEGIN
    ALTER TABLE pulse.schedules ADD CONSTRAINT schedules_cron CHECK (cron ~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$');
EXCEPTION WHEN check_violation THEN
    ALTER TABLE pulse.schedules ADD CONSTRAINT schedules_cron CHECK (cron ~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$') NOT VALID;
END
$rule$;

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
    IF NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.id = made AND j.schedule_id = trigger_schedule.id) THEN
        RAISE EXCEPTION 'job % exists already, and is not of this schedule', made USING ERRCODE = 'unique_violation';
    END IF;
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

-- End of: schedules.

INSERT INTO pulse.schema_version (version) VALUES (4);
