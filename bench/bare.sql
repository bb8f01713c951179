-- The yardstick's table: as wide as pulse's, with as many indexes and about the same checks. It stays as it is when
-- pulse's own changes, so that ratios of two versions of pulse can be compared.
DROP TABLE IF EXISTS bare;
DROP TYPE IF EXISTS bare_status;
CREATE TYPE bare_status AS ENUM ('PENDING', 'RUNNING', 'COMPLETED', 'RETRYING', 'DEAD_LETTERED', 'CANCELED');
CREATE TABLE bare (
    id           uuid PRIMARY KEY,
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_run_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,
    lease_until  timestamptz,
    completed_at timestamptz,
    occurrence   timestamptz,
    timeout_s    float8,
    schedule_id  uuid,
    attempts     int NOT NULL DEFAULT 0,
    uncharged    int NOT NULL DEFAULT 0,
    max_attempts int NOT NULL DEFAULT 5,
    crashes      int NOT NULL DEFAULT 0,
    status       bare_status NOT NULL DEFAULT 'PENDING',
    priority     smallint NOT NULL DEFAULT 0,
    topic        text NOT NULL,
    name         text NOT NULL,
    args         jsonb NOT NULL,
    locked_by    text,
    progress     jsonb,
    result       jsonb,
    checkpoint   jsonb,
    last_error   text,
    CHECK ((status = 'RUNNING') = (locked_by IS NOT NULL AND lease_until IS NOT NULL)),
    CHECK (attempts >= uncharged),
    CHECK (priority BETWEEN -100 AND 100)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX bare_claim ON bare (topic, priority DESC, next_run_at) WHERE status IN ('PENDING', 'RETRYING');
CREATE INDEX bare_running ON bare (started_at) WHERE status = 'RUNNING';
