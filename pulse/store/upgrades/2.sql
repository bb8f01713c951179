-- Version 1 to 2: what an attempt used and where it hung; stall_s of handlers; the mark of the newest sweep.
-- What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them together.

ALTER TABLE pulse.attempts
    ADD COLUMN cpu_s float8 CHECK (cpu_s >= 0),
    ADD COLUMN peak_rss_bytes bigint CHECK (peak_rss_bytes >= 0),
    ADD COLUMN stack text;

ALTER TABLE pulse.handlers
    ADD COLUMN stall_s float8 CHECK (stall_s > 0 AND stall_s <= 1e9);

CREATE TABLE pulse.sweep_mark (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    swept_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    wait_until timestamptz NOT NULL DEFAULT '-infinity'
);

INSERT INTO pulse.sweep_mark DEFAULT VALUES;

INSERT INTO pulse.schema_version (version) VALUES (2);
