-- Version 3 to 4.

-- Policy of topics, pause with who and until when, expiry of jobs.

ALTER TABLE pulse.jobs
    ADD COLUMN expires_at timestamptz,
    ADD CONSTRAINT jobs_expires_at CHECK (expires_at >= '0001-01-02 00:00+00' AND expires_at < '9999-12-31 00:00+00');
CREATE INDEX idx_jobs_expiry ON pulse.jobs (expires_at) WHERE expires_at IS NOT NULL AND status IN ('PENDING', 'RETRYING');

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

DROP FUNCTION pulse.submit(text, jsonb, text, int, timestamptz, int, float8, uuid);
DROP FUNCTION pulse.submit_many(jsonb);

-- Submit many jobs from SQL: a JSON array of objects with the keys of pulse.submit. Returns the ids in the same order.
-- All or none. The n-th job of one call is due n microseconds after the first: submit order is run order.
CREATE FUNCTION pulse.submit_many(jobs jsonb) RETURNS SETOF uuid
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

-- End of: policy of topics, pause, expiry.

INSERT INTO pulse.schema_version (version) VALUES (4);
