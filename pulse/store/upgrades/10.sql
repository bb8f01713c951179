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

INSERT INTO pulse.schema_version (version) VALUES (10);
