-- Version 9 to 10. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

CREATE TABLE pulse.set_aside (
    job_id      uuid PRIMARY KEY,
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_try_at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- infinity: an operator set it aside
    tries       int NOT NULL DEFAULT 1,
    sqlstate    text NOT NULL,
    statement   text NOT NULL,                      -- which one was refused, by its name in queries.sql
    error       text NOT NULL
);

-- Epochs: how often the database has gone back, by a restore or a failover with a gap, so that it knew less than the hosts that
-- use it. An attempt of a job that may be older than its newest epoch gets a number above attempts_floor, which no attempt had
-- before: so (id, attempts) names one claim for ever, after that, too. Rows are added, never changed but for what is told of them.
CREATE TABLE pulse.epochs (
    epoch        int PRIMARY KEY CHECK (epoch >= 1),
    began_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts_floor int NOT NULL DEFAULT 0 CHECK (attempts_floor >= 0),
    reopened     int CHECK (reopened >= 0),         -- jobs known to be finished that it listed as open; NULL: nobody knew any
    timeline     int,                               -- of PostgreSQL, when it began ...
    system_id    text,                              -- ... and the cluster's identifier
    first_id     uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',  -- timed ids from here on were made in this epoch
    went_back_to timestamptz,                       -- the newest that the database knew ...
    known_until  timestamptz,                       -- ... and what the host that noticed knew that it had known
    host         text,                              -- who noticed
    lineage      uuid,                              -- of epoch 1: the database, whichever server it is restored to
    detail       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(detail) = 'object'),
    CONSTRAINT epochs_lineage CHECK ((epoch = 1) = (lineage IS NOT NULL))
);

INSERT INTO pulse.epochs (epoch, lineage) VALUES (1, gen_random_uuid());

-- What hosts have seen of the database: each dispatcher counts in a row of its own, about once a second, and remembers beside the
-- database how far it has come. A database that has counted less, or has no such row, has gone back.
CREATE TABLE pulse.witnesses (
    instance uuid PRIMARY KEY,                      -- drawn by the host, and kept in its state directory
    counter  bigint NOT NULL CHECK (counter >= 1),
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    epoch    int NOT NULL,                          -- the newest that it has accepted
    highest  int NOT NULL,                          -- no attempt that it handed out had a number above it
    place    text NOT NULL,                         -- the very server, timeline and table that it counts in
    host     text NOT NULL
) WITH (fillfactor = 50);

-- Tells a channel something, by NOTIFY. What is told is a hint, with a poll behind it; so nothing is told while the queue of
-- NOTIFY is half full, since somebody who listens stays in a transaction: at a full one, who tells fails at the commit.
CREATE FUNCTION pulse.tell(channel text, message text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, message);
    END IF;
END
$$;

DO $told$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT p.oid FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'pulse'::regnamespace
          AND p.proname IN ('create_schedule', 'notify_work', 'resume_schedule', 'set_schedule', 'tell_topics')
    LOOP
        EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef(one), 'pg_notify(', 'pulse.tell(');
    END LOOP;
END
$told$;

INSERT INTO pulse.schema_version (version) VALUES (10);
