-- Version 6 to 7. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

-- Attempts that their handler did not end itself: few, unless something is wrong. Whoever looks what is wrong reads the newest.
CREATE INDEX idx_attempts_lost ON pulse.attempts (ended_at) WHERE outcome IN ('crashed', 'timeout', 'stalled', 'lease_expired');

-- For whom a process asked, by its own word: the user of a dashboard.
ALTER TABLE pulse.audit ADD COLUMN behalf text;

CREATE OR REPLACE FUNCTION pulse.note(action text, topic text DEFAULT NULL, schedule_id uuid DEFAULT NULL, job_id uuid DEFAULT NULL,
                           jobs int DEFAULT NULL, detail jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pulse, pg_catalog, pg_temp AS $$
DECLARE
    who jsonb := jsonb_build_object('user', session_user, 'host', host(inet_client_addr()));
BEGIN
    IF has_table_privilege(session_user, 'pulse.audit', 'INSERT') THEN  -- others could say that they are somebody else
        who := coalesce(nullif(current_setting('pulse.operator', true), '')::jsonb, who);
    END IF;
    INSERT INTO pulse.audit (action, topic, schedule_id, job_id, jobs, detail, uid, user_name, behalf, host, pid)
    VALUES (note.action, note.topic, note.schedule_id, note.job_id, note.jobs, coalesce(note.detail, '{}'),
            (who->>'uid')::bigint, who->>'user', who->>'behalf', who->>'host', (who->>'pid')::int);
END
$$;

INSERT INTO pulse.schema_version (version) VALUES (7);
