-- A record of every change of pulse.jobs, for tests and for investigating: `pulse check --install-audit`.
--
-- Expensive: each change writes a second row and an index entry. Heartbeats and checkpoints are not recorded, since no
-- invariant is about them. The functions run with their owner's rights, since a role that may write to pulse.jobs may have no
-- rights on the record. Nothing in pulse refers to it, so dropping its schema removes all of it.

CREATE SCHEMA pulse_audit;

CREATE TABLE pulse_audit.changes (
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,    -- ascends per job: the row's lock is held
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    began           timestamptz NOT NULL DEFAULT statement_timestamp(), -- of the statement that made the change
    id              uuid NOT NULL,
    old_lease_until timestamptz,
    old_next_run_at timestamptz,
    new_next_run_at timestamptz,
    new_run_after   timestamptz,                -- of a sequence: until when it is put off
    new_started_at  timestamptz,
    old_attempts    int,
    new_attempts    int,
    old_uncharged   int,
    new_uncharged   int,
    old_crashes     int,
    new_crashes     int,
    rewritten       boolean NOT NULL,           -- a column that must never change has changed: name, topic, args …
    old_status      text,                       -- NULL: inserted
    new_status      text,                       -- NULL: deleted
    topic           text NOT NULL,
    old_locked_by   text,
    new_locked_by   text
);

CREATE INDEX ON pulse_audit.changes (id, seq);

CREATE TABLE pulse_audit.gates (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    topic  text NOT NULL,
    paused boolean NOT NULL,
    lapses timestamptz                          -- when the pause ends by itself
);

-- Topics and handlers that have, or had, their own back-off.
CREATE TABLE pulse_audit.backoffs (
    kind text NOT NULL,                         -- the table: topics or handlers
    name text NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE FUNCTION pulse_audit.change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pulse_audit.changes (id, topic, rewritten, old_status, new_status, old_attempts, new_attempts, old_uncharged,
        new_uncharged, old_crashes, new_crashes, old_locked_by, new_locked_by, old_lease_until, old_next_run_at, new_next_run_at,
        new_run_after, new_started_at)
    VALUES (coalesce(NEW.id, OLD.id), coalesce(NEW.topic, OLD.topic),
        TG_OP = 'UPDATE' AND ((OLD.id, OLD.name, OLD.submitted_at, OLD.schedule_id, OLD.occurrence)
            IS DISTINCT FROM (NEW.id, NEW.name, NEW.submitted_at, NEW.schedule_id, NEW.occurrence)
            OR (OLD.args <> NEW.args AND (OLD.status <> NEW.status OR OLD.status NOT IN ('PENDING', 'RETRYING') OR OLD.unique_until IS NULL))
            OR (OLD.topic <> NEW.topic AND (OLD.status <> NEW.status OR OLD.status NOT IN ('PENDING', 'RETRYING')))),
        OLD.status, NEW.status, OLD.attempts, NEW.attempts, OLD.uncharged, NEW.uncharged, OLD.crashes, NEW.crashes,
        OLD.locked_by, NEW.locked_by, OLD.lease_until, OLD.next_run_at, NEW.next_run_at, NEW.run_after, NEW.started_at);
    RETURN NULL;
END
$$;

CREATE FUNCTION pulse_audit.gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pulse_audit.gates (topic, paused, lapses)
    VALUES (coalesce(NEW.topic, OLD.topic), coalesce(NEW.paused, false), NEW.paused_until);
    RETURN NULL;
END
$$;

CREATE FUNCTION pulse_audit.backoff() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO pulse_audit.backoffs (kind, name) VALUES (TG_TABLE_NAME, to_jsonb(NEW) ->> TG_ARGV[0]) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER pulse_audit_rows AFTER INSERT OR DELETE ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION pulse_audit.change();

CREATE TRIGGER pulse_audit_changes AFTER UPDATE ON pulse.jobs FOR EACH ROW
WHEN ((OLD.id, OLD.status, OLD.attempts, OLD.uncharged, OLD.crashes, OLD.max_attempts, OLD.locked_by, OLD.next_run_at, OLD.started_at,
       OLD.completed_at, OLD.name, OLD.topic, OLD.args, OLD.submitted_at, OLD.schedule_id, OLD.occurrence)
    IS DISTINCT FROM
      (NEW.id, NEW.status, NEW.attempts, NEW.uncharged, NEW.crashes, NEW.max_attempts, NEW.locked_by, NEW.next_run_at, NEW.started_at,
       NEW.completed_at, NEW.name, NEW.topic, NEW.args, NEW.submitted_at, NEW.schedule_id, NEW.occurrence))
EXECUTE FUNCTION pulse_audit.change();

CREATE TRIGGER pulse_audit_gates AFTER INSERT OR UPDATE OR DELETE ON pulse.dispatch_control FOR EACH ROW
EXECUTE FUNCTION pulse_audit.gate();

CREATE TRIGGER pulse_audit_backoffs AFTER INSERT OR UPDATE ON pulse.topics FOR EACH ROW WHEN (NEW.backoff IS NOT NULL)
EXECUTE FUNCTION pulse_audit.backoff('topic');

CREATE TRIGGER pulse_audit_backoffs AFTER INSERT OR UPDATE ON pulse.handlers FOR EACH ROW WHEN (NEW.backoff IS NOT NULL)
EXECUTE FUNCTION pulse_audit.backoff('name');

INSERT INTO pulse_audit.backoffs (kind, name)
SELECT 'topics', topic FROM pulse.topics WHERE backoff IS NOT NULL
UNION ALL SELECT 'handlers', name FROM pulse.handlers WHERE backoff IS NOT NULL;

-- Pauses that are in force now began before any change that is recorded from here on.
INSERT INTO pulse_audit.gates (topic, paused, lapses) SELECT topic, paused, paused_until FROM pulse.dispatch_control WHERE paused;
