-- Version 7 to 8. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together. Who may submit need not be able to read jobs any more, and no function goes by the caller's search_path.

CREATE OR REPLACE FUNCTION pulse.jittered(id uuid, occurrence timestamptz, jitter_s float8) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    IF occurrence IS NULL OR jitter_s = 0 THEN
        RETURN occurrence;
    END IF;
    RETURN occurrence + floor(jitter_s * 1e6 * (('x' || left(md5(id || ' ' || (extract(epoch FROM occurrence) * 1000000)::bigint), 8))::bit(32)::bigint
                                                / 4294967296.0::float8)) * interval '1 microsecond';
END
$$;

-- Is there a job with this id, name, topic and args? It has its owner's rights, for those who may submit and must not read what
-- others have submitted: what it tells them, their submit would tell them anyway. Nobody else may call it.
CREATE FUNCTION pulse.is_stored_unseen(id uuid, name text, topic text, args jsonb) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pulse, pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pulse.jobs j WHERE j.id = is_stored_unseen.id AND j.name = is_stored_unseen.name
                                              AND j.topic = is_stored_unseen.topic AND j.args = is_stored_unseen.args)
$$;

REVOKE ALL ON FUNCTION pulse.is_stored_unseen(uuid, text, text, jsonb) FROM PUBLIC;

-- The same for everybody: who may read jobs does it with his own rights.
CREATE FUNCTION pulse.is_stored(id uuid, name text, topic text, args jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pulse, pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT bool_and(has_column_privilege('pulse.jobs', c.needed, 'SELECT')) FROM unnest(ARRAY['id', 'name', 'topic', 'args']) AS c(needed)) THEN
        RETURN EXISTS (SELECT FROM pulse.jobs j WHERE j.id = is_stored.id AND j.name = is_stored.name
                                                  AND j.topic = is_stored.topic AND j.args = is_stored.args);
    END IF;
    RETURN pulse.is_stored_unseen(id, name, topic, args);
END
$$;

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
                            'expires_in_s', 'traceparent']) LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'unknown key "%" in a job; allowed are name, args, topic, priority, run_at, max_attempts, timeout_s, id, expires_at, expires_in_s, traceparent', bad
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
    SELECT left(e.job->>'traceparent', 80) INTO bad FROM jsonb_array_elements(jobs) AS e(job)
        WHERE e.job->>'traceparent' !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'traceparent is %; one of W3C Trace Context is allowed', quote_literal(bad) USING ERRCODE = 'invalid_parameter_value';
    END IF;

    WITH given AS MATERIALIZED (
        SELECT coalesce(g.id, pulse.uuid7()) AS id, g.name, coalesce(g.args, '{}') AS args, g.topic, coalesce(g.priority, 0) AS priority,
               g.run_at, g.max_attempts, g.timeout_s, coalesce(g.expires_at, began + g.expires_in_s * interval '1 second') AS expires_at,
               g.traceparent, e.place
        FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(
            id uuid, name text, args jsonb, topic text, priority smallint, run_at timestamptz, max_attempts int, timeout_s float8,
            expires_at timestamptz, expires_in_s float8, traceparent text)
    ), put AS (
        INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at, traceparent)
        SELECT g.id, g.name, coalesce(g.topic, h.topic, 'default'), g.args, g.priority,
               coalesce(g.run_at, began) + (g.place - 1) * interval '1 microsecond',
               coalesce(g.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')),
               coalesce(g.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')), g.expires_at,
               g.traceparent
        FROM given g
        LEFT JOIN pulse.handlers h ON h.name = g.name
        LEFT JOIN pulse.topics t ON t.topic = coalesce(g.topic, h.topic, 'default')
        ORDER BY g.id
        ON CONFLICT DO NOTHING  -- and RETURNING no column: who may only submit may read none
        RETURNING 1
    )
    SELECT array_agg(g.id ORDER BY g.place), (SELECT count(*) FROM put) INTO made, fresh FROM given g;

    -- An id that was there already is the same job when name, topic and args are the same, and a conflict otherwise.
    IF fresh < cardinality(made) THEN
        SELECT g.id::text INTO bad
        FROM jsonb_array_elements(jobs) AS e(job)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(id uuid, name text, args jsonb, topic text)
        LEFT JOIN pulse.handlers h ON h.name = g.name
        WHERE g.id IS NOT NULL
          AND NOT pulse.is_stored(g.id, g.name, coalesce(g.topic, h.topic, 'default'), coalesce(g.args, '{}'))
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

CREATE OR REPLACE FUNCTION pulse.submit(
    name text, args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, id uuid DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    expires_in_s float8 DEFAULT NULL, traceparent text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pulse, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made uuid := coalesce(submit.id, pulse.uuid7());
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

    IF submit.expires_at IS NOT NULL OR submit.expires_in_s IS NOT NULL THEN
        bad := pulse.expiry_problem(submit.run_at, submit.expires_at, submit.expires_in_s);
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF submit.traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' THEN
        RAISE EXCEPTION 'traceparent is %; one of W3C Trace Context is allowed', quote_literal(left(submit.traceparent, 80))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at, traceparent)
    SELECT made, submit.name, coalesce(submit.topic, h.topic, 'default'), submit.args, coalesce(submit.priority, 0),
           coalesce(submit.run_at, clock_timestamp()),
           coalesce(submit.max_attempts, h.max_attempts, t.max_attempts, s.max_attempts),
           coalesce(submit.timeout_s, h.timeout_s, t.timeout_s, s.timeout_s),
           coalesce(submit.expires_at, clock_timestamp() + submit.expires_in_s * interval '1 second'), submit.traceparent
    FROM (VALUES (1)) AS one
    LEFT JOIN pulse.handlers h ON h.name = submit.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(submit.topic, h.topic, 'default')
    LEFT JOIN pulse.topics s ON s.topic = ''
    ON CONFLICT DO NOTHING;  -- without a column that would have to be readable

    IF FOUND THEN
        PERFORM pulse.notify_work();
    ELSIF NOT pulse.is_stored(made, submit.name, coalesce(
        submit.topic, (SELECT h.topic FROM pulse.handlers h WHERE h.name = submit.name), 'default'), submit.args) THEN
        RAISE EXCEPTION 'job % exists already with another name, topic or args', made USING ERRCODE = 'unique_violation';
    END IF;
    RETURN made;
END
$$;

INSERT INTO pulse.schema_version (version) VALUES (8);
