-- Version 2 to 3: who submits by SQL wakes the workers.
-- What stands here stands in schema.sql too, which is the whole of the newest version; a test holds them together.

-- Has the workers of every host look for work now, and not at their next poll: at most once in 50 ms for all who submit by
-- SQL, since NOTIFY has the commits of a whole cluster wait for each other. When that was last, in Unix ms, is the value of
-- a sequence, which is read and set without waiting for anybody's transaction. With `SET pulse.notify = off` a session does
-- without: PREPARE TRANSACTION is not possible after a NOTIFY.
CREATE SEQUENCE pulse.work_notified;
GRANT SELECT, UPDATE ON SEQUENCE pulse.work_notified TO PUBLIC;  -- whoever may submit; it is worth nothing else

CREATE FUNCTION pulse.notify_work() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
DECLARE
    now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    IF (SELECT now_ms - last_value NOT BETWEEN 0 AND 50 FROM pulse.work_notified)
       AND current_setting('pulse.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM setval('pulse.work_notified', now_ms), pg_notify('pulse_work', '');
    END IF;
END
$$;

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
        WHERE k <> ALL (ARRAY['name', 'args', 'topic', 'priority', 'run_at', 'max_attempts', 'timeout_s', 'id']) LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'unknown key "%" in a job; allowed are name, args, topic, priority, run_at, max_attempts, timeout_s, id', bad
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    WITH given AS MATERIALIZED (
        SELECT coalesce(g.id, pulse.uuid7()) AS id, g.name, coalesce(g.args, '{}') AS args, g.topic, coalesce(g.priority, 0) AS priority,
               g.run_at, g.max_attempts, g.timeout_s, e.place
        FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(
            id uuid, name text, args jsonb, topic text, priority smallint, run_at timestamptz, max_attempts int, timeout_s float8)
    ), put AS (
        INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s)
        SELECT g.id, g.name, coalesce(g.topic, h.topic, 'default'), g.args, g.priority,
               coalesce(g.run_at, began) + (g.place - 1) * interval '1 microsecond',
               coalesce(g.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')),
               coalesce(g.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = ''))
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
CREATE OR REPLACE FUNCTION pulse.submit(
    name text, args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made uuid := coalesce(submit.id, pulse.uuid7());
    done uuid;
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

    INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s)
    SELECT made, submit.name, coalesce(submit.topic, h.topic, 'default'), submit.args, coalesce(submit.priority, 0),
           coalesce(submit.run_at, clock_timestamp()),
           coalesce(submit.max_attempts, h.max_attempts, t.max_attempts, s.max_attempts),
           coalesce(submit.timeout_s, h.timeout_s, t.timeout_s, s.timeout_s)
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

INSERT INTO pulse.schema_version (version) VALUES (3);
