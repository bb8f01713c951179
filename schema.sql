-- pulse: the schema, version 1.
--
-- Theory of operation
-- ===================
-- A job is one row of pulse.jobs: its state, its retry budget and its lease together. Every change of state is one
-- UPDATE whose WHERE clause encodes the invariant, so the database alone decides, however many dispatchers,
-- watchdogs and hosts there are. Rules between columns are CHECKs.
--
--                        +--------------------------- snoozed, given back ---------------------------+
--                        v                                                                           |
--   submit --> PENDING --------- claim ---------> RUNNING -------- ok --------> COMPLETED            |
--                 |      attempts + 1, lease        |  |                                             |
--                 |                                 |  +-- failed, lease lapsed --> RETRYING --------+-- claim --> RUNNING
--                 |                                 |            (budget left)         |
--                 |                                 +-- budget spent, discarded --> DEAD_LETTERED
--                 +--- cancel ---> CANCELED <--- cancel (also RUNNING, RETRYING)
--                 +--- expired --> DEAD_LETTERED <--- expired (also RETRYING)
--   COMPLETED, DEAD_LETTERED, CANCELED -- retry by an operator --> PENDING (uncharged = attempts, crashes = 0)
--
-- The claim is the lease: the UPDATE that makes a row RUNNING sets locked_by and lease_until and adds 1 to attempts. A job that
-- finds a free worker when it is submitted is claimed by its INSERT, with the same columns set.
-- attempts is the fencing token: it only ever grows, so (id, attempts) names one claim for ever, and every write by a
-- worker matches id, status, locked_by and attempts. A database that went back in time (a restore, a failover with a gap) would
-- hand out the same numbers again: there an epoch begins, and attempts go on above the highest number of any host (pulse.epochs).
-- Attempts that do not use up the retry budget (given back, snoozed, proven worker deaths) are also counted in uncharged; the
-- charged ones are attempts - uncharged.
--
-- The claim index holds only rows that may still run, ordered as they are claimed: topic, priority, due time; rows of groups have one
-- of their own. A job that
-- is not due yet lies behind the range that a claim reads, so it costs nothing, however many there are. No index holds
-- lease_until or progress: heartbeats stay HOT (they write no index). The few RUNNING rows are found by started_at.
--
-- Installed and upgraded by `pulse migrate` and by the supervisor at its start, inside one transaction that holds an
-- advisory lock. This file is the whole of the newest version: each release that changes it brings a version, and steps to it
-- from the version before (docs/adr/0047-one-schema-version.md).

CREATE SCHEMA IF NOT EXISTS pulse;

COMMENT ON SCHEMA pulse IS 'pulse job queue';

CREATE TABLE pulse.schema_version (
    version      int PRIMARY KEY CHECK (version >= 1),
    release      text NOT NULL,                     -- of pulse that introduced it; development versions before 0.1.0.dev2 had no such column
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO pulse.schema_version (version, release) VALUES (1, '0.2.0');

CREATE TYPE pulse.job_status AS ENUM ('PENDING', 'RUNNING', 'COMPLETED', 'RETRYING', 'DEAD_LETTERED', 'CANCELED');

-- What a single column of a job may hold. A domain, since a statement reads every CHECK of a table anew and looks at all of them for each
-- row that it writes: as CHECKs these took a fifth of the time of a statement that writes one job, and a twelfth of one that writes many.
-- topic and priority have CHECKs, since statements walk through these columns by recursion, which takes no domains; and name has one, since drivers
-- do not know an array of a domain.
CREATE DOMAIN pulse.job_args AS jsonb CONSTRAINT jobs_args CHECK (jsonb_typeof(VALUE) = 'object');
CREATE DOMAIN pulse.job_max_attempts AS int CONSTRAINT jobs_max_attempts CHECK (VALUE BETWEEN 1 AND 10000);
CREATE DOMAIN pulse.job_timeout AS float8 CONSTRAINT jobs_timeout CHECK (VALUE > 0 AND VALUE <= 1e9);
CREATE DOMAIN pulse.job_crashes AS int CONSTRAINT jobs_crashes CHECK (VALUE >= 0);
-- What Python's datetime can hold: a single row outside of it would fail every claim and every page that it is in.
CREATE DOMAIN pulse.job_time AS timestamptz CONSTRAINT jobs_time CHECK (VALUE >= '0001-01-02 00:00+00' AND VALUE < '9999-12-31 00:00+00');

-- Columns of fixed width first, wide ones before narrow ones: without padding a row is 24 bytes shorter than in a
-- logical order.
CREATE TABLE pulse.jobs (
    id           uuid PRIMARY KEY,
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_run_at  pulse.job_time NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,                       -- of the newest claim
    lease_until  timestamptz,
    completed_at timestamptz,                       -- of the terminal state, whichever it is
    occurrence   timestamptz,                       -- of the schedule that fired it
    expires_at   pulse.job_time,                    -- from then on it is not started any more
    run_after    timestamptz,                       -- of a sequence, once it was claimed: not before then; next_run_at stays its position.
                                                    -- While it waits for other jobs: when it is due once they have ended
    timeout_s    pulse.job_timeout,
    schedule_id  uuid,
    attempts     int NOT NULL DEFAULT 0,
    uncharged    int NOT NULL DEFAULT 0,
    max_attempts pulse.job_max_attempts NOT NULL,
    crashes      pulse.job_crashes NOT NULL DEFAULT 0,
    waiting_on   int,                               -- jobs that have not ended, of those it was to wait for; NULL: it was to wait for none
    signals      int,                               -- how many were sent to it; NULL: none
    status       pulse.job_status NOT NULL DEFAULT 'PENDING',
    priority     smallint NOT NULL DEFAULT 0,
    is_parent    boolean,                           -- something waits, or has waited, for its end: another job, or the outbox; NULL: nothing
    topic        text NOT NULL,
    name         text NOT NULL,
    args         pulse.job_args NOT NULL DEFAULT '{}',
    locked_by    text,
    ran_by       text,                              -- of a completed job: the worker that completed it
    progress     jsonb,
    result       jsonb,
    checkpoint   jsonb,                             -- what ctx.checkpoint saved, for the next attempt
    last_error   text,
    traceparent  text,                              -- W3C, of the span that submitted it; checked where it is submitted
    group_key    text,                              -- limits per group, turns and sequences go by topic and group; NULL: none
    counted_by   text,                              -- the limit of its newest claim, of which its RUNNING row is a slot; NULL: none
    unique_key   text,                              -- no other job has it meanwhile ...
    unique_until text,                              -- ... that is until it starts first, or ends; NULL: it has given the key away
    awaited_signal text,                            -- of a job that waits: its handler waits for a signal of that name until it is due

    CONSTRAINT jobs_lease CHECK ((status = 'RUNNING') = (locked_by IS NOT NULL)
                             AND (status = 'RUNNING') = (lease_until IS NOT NULL)),
    CONSTRAINT jobs_ran_by CHECK (ran_by IS NULL OR status = 'COMPLETED'),
    CONSTRAINT jobs_claimed CHECK (status <> 'RUNNING' OR (started_at IS NOT NULL AND attempts >= 1)),
    CONSTRAINT jobs_finished CHECK ((status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')) = (completed_at IS NOT NULL)),
    CONSTRAINT jobs_dead_letter_reason CHECK (status <> 'DEAD_LETTERED' OR coalesce(last_error, '') <> ''),
    CONSTRAINT jobs_attempts CHECK (uncharged >= 0 AND attempts >= uncharged),
    CONSTRAINT jobs_priority CHECK (priority BETWEEN -100 AND 100),
    CONSTRAINT jobs_topic CHECK (length(topic) BETWEEN 1 AND 200),
    CONSTRAINT jobs_name CHECK (length(name) BETWEEN 1 AND 200)
    -- None for unique_key and unique_until, for which it would cost every write 3 %: pulse.unique_problem looks at them before they
    -- are stored. Nor for group_key, run_after, waiting_on, signals and awaited_signal.
) WITH (
    -- Room on the page for the new versions that heartbeats write: without it 4 % of them were HOT, with it 64 to 98 %.
    fillfactor = 70,
    -- A queue's table turns over completely within minutes: vacuum by count, not by share of the table.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX idx_jobs_claim ON pulse.jobs (topic, priority DESC, next_run_at) WHERE group_key IS NULL AND status IN ('PENDING', 'RETRYING');
-- Jobs of groups, so that other jobs pay for none of it: those that wait, in order; slots that are taken; dead letters, which halt a
-- sequence. Three parts of one index: each further index would cost every statement that writes jobs 3 to 5 microseconds.
CREATE INDEX idx_jobs_groups ON pulse.jobs (
    (CASE WHEN status IN ('PENDING', 'RETRYING') THEN 0 WHEN status = 'RUNNING' THEN 1 ELSE 2 END), topic, group_key, priority DESC,
    next_run_at, id)
    WHERE group_key IS NOT NULL AND status IN ('PENDING', 'RETRYING', 'RUNNING', 'DEAD_LETTERED');
-- The slots of a limit, the oldest first: dead entries lie before it.
CREATE INDEX idx_jobs_counted ON pulse.jobs (counted_by, started_at) WHERE counted_by IS NOT NULL AND status = 'RUNNING';
CREATE INDEX idx_jobs_running ON pulse.jobs (started_at) WHERE status = 'RUNNING';
CREATE INDEX idx_jobs_schedule ON pulse.jobs (schedule_id, occurrence) WHERE schedule_id IS NOT NULL;
CREATE INDEX idx_jobs_held ON pulse.jobs (schedule_id, occurrence)
    WHERE status = 'PENDING' AND next_run_at = '9999-12-30 00:00+00' AND schedule_id IS NOT NULL;
-- Jobs that came back from a claim because no worker has their handler: nearly always empty.
CREATE INDEX idx_jobs_unhandled ON pulse.jobs (topic, name)
    WHERE status IN ('PENDING', 'RETRYING') AND last_error LIKE 'no handler named %';
-- A key is taken by an INSERT, and given back by moves; no move takes one. So no claim, retry, snooze or give-back meets this index:
-- attempts never returns to 0, and an operator's retry sets unique_until to NULL. completed_at says of all jobs whether they have ended, for
-- half of what a list of statuses costs each write.
CREATE UNIQUE INDEX idx_jobs_unique ON pulse.jobs (unique_key)
    WHERE unique_until IS NOT NULL AND completed_at IS NULL AND (unique_until = 'end' OR attempts = 0);
CREATE INDEX idx_jobs_expiry ON pulse.jobs (expires_at) WHERE expires_at IS NOT NULL AND status IN ('PENDING', 'RETRYING');

-- Lists are in the order of ids of version 7, which begin with their time of creation: so no index on submitted_at is needed,
-- which would be written three times for each job. Only other ids, chosen by clients, have one.
CREATE INDEX idx_jobs_other_ids ON pulse.jobs (submitted_at, id)
    WHERE get_byte(uuid_send(id), 6) >> 4 <> 7 OR id >= '04000000-0000-0000-0000-000000000000';  -- not of version 7, or after 2109
CREATE INDEX idx_jobs_ended_badly ON pulse.jobs (status, id) WHERE status IN ('DEAD_LETTERED', 'CANCELED');

-- Every attempt that did not simply succeed, and completed ones of jobs that were retried. No foreign key: a cascade would lock and probe for each deleted job.
-- Attempt 0 stands for no attempt: the job expired before it was started.
CREATE TABLE pulse.attempts (
    job_id      uuid NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempt     int NOT NULL CHECK (attempt >= 0),
    exit_code   int,                                -- negative: killed by that signal
    outcome     text NOT NULL CHECK (outcome IN ('error', 'retry', 'timeout', 'stalled', 'lease_expired', 'crashed',
                                                 'discarded', 'snoozed', 'released', 'canceled', 'expired', 'completed')),
    worker      text,
    error       text,
    progress    jsonb,
    cpu_s       float8 CHECK (cpu_s >= 0),          -- CPU time, only of isolated attempts: the kernel counts it per process
    peak_rss_bytes bigint CHECK (peak_rss_bytes >= 0),
    stack       text,                               -- traceback of an attempt that outlasted timeout_s or stall_s
    PRIMARY KEY (job_id, attempt)
);

-- Attempts that the server ended: few, unless something is wrong. `pulse doctor` reads the newest.
CREATE INDEX idx_attempts_lost ON pulse.attempts (ended_at) WHERE outcome IN ('crashed', 'timeout', 'stalled', 'lease_expired');

-- When an occurrence fires: later by less than jitter_s, always by the same delay, since it is computed from the schedule's
-- id and the occurrence. pulse_actors.shared.recurrence.jittered_us is the same in Python.
CREATE FUNCTION pulse.jittered(id uuid, occurrence timestamptz, jitter_s float8) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF occurrence IS NULL OR jitter_s = 0 THEN
        RETURN occurrence;
    END IF;
    RETURN occurrence + floor(jitter_s * 1e6 * (('x' || left(md5(id || ' ' || (extract(epoch FROM occurrence) * 1000000)::bigint), 8))::bit(32)::bigint
                                                / 4294967296.0::float8)) * interval '1 microsecond';
END
$$;

-- A schedule holds its next occurrence (next_run_at, the cursor) and the one after it, computed beforehand: so firing is one
-- statement, and does not wait for a cron library. SQL cannot compute cron expressions: where reckon is true the scheduler does,
-- next_run_at if it is NULL, else following_run_at. So SQL that inserts or changes a row only sets reckon.
CREATE TABLE pulse.schedules (
    id           uuid PRIMARY KEY,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_run_at  timestamptz,                       -- the cursor: the next occurrence; NULL: there is none (any more, or yet)
    last_run_at  timestamptz,                       -- the newest occurrence that fired
    run_at       timestamptz,                       -- kind at
    every_s      float8,                            -- kind every
    timeout_s    float8,
    max_attempts int,
    priority     smallint NOT NULL DEFAULT 0,
    paused       boolean NOT NULL DEFAULT false,
    kind         text NOT NULL,
    name         text NOT NULL,
    topic        text,                              -- NULL: resolved when it fires
    args         jsonb NOT NULL DEFAULT '{}',
    cron         text,                              -- kind cron
    timezone     text,
    following_run_at timestamptz,                   -- the occurrence after next_run_at; NULL: none, or not computed yet
    starts_at    timestamptz,                       -- no occurrence before it
    ends_at      timestamptz,                       -- none after it
    undeclared_at timestamptz,                      -- since when its application no longer declares it
    jitter_s     float8 NOT NULL DEFAULT 0,
    last_job_id  uuid,                              -- the newest job that fired and was not held back
    revision     int NOT NULL DEFAULT 0,            -- grows with every change
    waiting      int NOT NULL DEFAULT 0,            -- jobs that are held back (overlap queue)
    reckon       boolean NOT NULL DEFAULT true,     -- the scheduler must compute its times
    catch_up     text NOT NULL DEFAULT 'latest',
    overlap      text NOT NULL DEFAULT 'allow',
    key          text,                              -- stable name of a schedule that an application declares
    declared_by  text,                              -- that application
    error        text,                              -- why its times cannot be computed; then it does not fire
    group_key    text,                              -- of its jobs, as in pulse.jobs; NULL: they have none
    unique_key   text,                              -- likewise
    unique_until text,
    on_conflict  text,                              -- while another job has the key: skip (NULL: the same) or replace
    skipped_at   timestamptz,                       -- the newest occurrence that submitted nothing, since another job was in its way
    skipped_for  uuid,                              -- that job
    due_at       timestamptz GENERATED ALWAYS AS (pulse.jittered(id, next_run_at, jitter_s)) STORED,

    CONSTRAINT schedules_kind CHECK (CASE kind
        WHEN 'at' THEN run_at IS NOT NULL AND every_s IS NULL AND cron IS NULL AND timezone IS NULL
        WHEN 'every' THEN every_s IS NOT NULL AND run_at IS NULL AND cron IS NULL AND timezone IS NULL
        WHEN 'cron' THEN cron IS NOT NULL AND timezone IS NOT NULL AND run_at IS NULL AND every_s IS NULL
        ELSE false END),
    CONSTRAINT schedules_next_run_at CHECK (next_run_at >= '0001-01-02 00:00+00' AND next_run_at < '9999-12-31 00:00+00'),
    CONSTRAINT schedules_run_at CHECK (run_at >= '0001-01-02 00:00+00' AND run_at < '9999-12-31 00:00+00'),
    CONSTRAINT schedules_every CHECK (every_s > 0 AND every_s <= 1e9),
    CONSTRAINT schedules_timeout CHECK (timeout_s > 0 AND timeout_s <= 1e9),
    CONSTRAINT schedules_max_attempts CHECK (max_attempts BETWEEN 1 AND 10000),
    CONSTRAINT schedules_priority CHECK (priority BETWEEN -100 AND 100),
    CONSTRAINT schedules_topic CHECK (length(topic) BETWEEN 1 AND 200),
    CONSTRAINT schedules_name CHECK (length(name) BETWEEN 1 AND 200),
    CONSTRAINT schedules_args CHECK (jsonb_typeof(args) = 'object'),
    CONSTRAINT schedules_cron CHECK (cron ~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$'),
    CONSTRAINT schedules_span CHECK (ends_at >= starts_at AND (kind <> 'at' OR (starts_at IS NULL AND ends_at IS NULL))),
    CONSTRAINT schedules_starts_at CHECK (starts_at >= '0001-01-02 00:00+00' AND starts_at < '9999-12-31 00:00+00'),
    CONSTRAINT schedules_ends_at CHECK (ends_at >= '0001-01-02 00:00+00' AND ends_at < '9999-12-31 00:00+00'),
    CONSTRAINT schedules_jitter CHECK (jitter_s >= 0 AND jitter_s <= least(86400, every_s)),
    CONSTRAINT schedules_catch_up CHECK (catch_up IN ('skip', 'latest', 'all')),
    CONSTRAINT schedules_overlap CHECK (overlap IN ('allow', 'skip', 'queue', 'cancel')),
    CONSTRAINT schedules_unique CHECK (CASE WHEN unique_key IS NULL THEN num_nonnulls(unique_until, on_conflict) = 0
        ELSE length(unique_key) BETWEEN 1 AND 500 AND coalesce(unique_until, 'end') IN ('start', 'end')
            AND coalesce(on_conflict, 'skip') IN ('skip', 'replace') AND overlap = 'allow' END),
    CONSTRAINT schedules_group_key CHECK (length(group_key) BETWEEN 1 AND 200 AND group_key <> '*'),
    CONSTRAINT schedules_waiting CHECK (waiting >= 0),
    CONSTRAINT schedules_key CHECK (length(key) BETWEEN 1 AND 200)
);

CREATE UNIQUE INDEX idx_schedules_key ON pulse.schedules (key) WHERE key IS NOT NULL;
CREATE INDEX idx_schedules_due ON pulse.schedules (due_at) WHERE next_run_at IS NOT NULL AND NOT paused AND error IS NULL;
CREATE INDEX idx_schedules_reckon ON pulse.schedules (id) WHERE reckon;
CREATE INDEX idx_schedules_waiting ON pulse.schedules (id) WHERE waiting > 0;

-- The gate, which pauses dispatch. Row '' is for everything; each topic that was ever paused has a row. From paused_until on
-- the gate is open, by the database's clock, even if the row has not been cleared yet.
CREATE TABLE pulse.dispatch_control (
    topic     text PRIMARY KEY CHECK (length(topic) <= 200),
    paused    boolean NOT NULL DEFAULT false,
    reason    text,
    paused_at timestamptz,
    paused_by text,
    paused_until timestamptz,
    CONSTRAINT dispatch_control_paused CHECK (paused = (paused_at IS NOT NULL)),
    CONSTRAINT dispatch_control_open CHECK (paused OR (paused_by IS NULL AND paused_until IS NULL)),
    CONSTRAINT dispatch_control_until CHECK (paused_until >= '0001-01-02 00:00+00' AND paused_until < '9999-12-31 00:00+00')
);

INSERT INTO pulse.dispatch_control (topic) VALUES ('');

-- A plain UPDATE that opens a gate may leave these columns: an old paused_until would end the next pause.
CREATE FUNCTION pulse.open_gate() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.paused_by := NULL;
    NEW.paused_until := NULL;
    RETURN NEW;
END
$$;

CREATE TRIGGER gate_opened BEFORE UPDATE ON pulse.dispatch_control
    FOR EACH ROW WHEN (NOT NEW.paused) EXECUTE FUNCTION pulse.open_gate();

-- What workers declared of their handlers in the newest hello.
CREATE TABLE pulse.handlers (
    name         text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    topic        text CHECK (length(topic) BETWEEN 1 AND 200),
    max_attempts int CHECK (max_attempts BETWEEN 1 AND 10000),
    max_crashes  int CHECK (max_crashes BETWEEN 1 AND 10000),
    timeout_s    float8 CHECK (timeout_s > 0 AND timeout_s <= 1e9),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    stall_s      float8 CHECK (stall_s > 0 AND stall_s <= 1e9),
    backoff      text CONSTRAINT handlers_backoff CHECK (length(backoff) <= 500 AND backoff ~
        '^(quadratic(:\d{1,9}(\.\d{1,6})?)?|exponential(:\d{1,9}(\.\d{1,6})?){0,2}|fixed:\d{1,9}(\.\d{1,6})?|list:\d{1,9}(\.\d{1,6})?(,\d{1,9}(\.\d{1,6})?)*)$'),
    on_dead_letter text CHECK (length(on_dead_letter) BETWEEN 1 AND 200),  -- name of the job that is submitted then
    on_crash     text CHECK (length(on_crash) BETWEEN 1 AND 200)
);

-- Policy per topic; NULL: the server decides. Row '' holds the server's defaults: the supervisor writes max_attempts,
-- max_crashes and backoff from its settings. Changes by pulse.set_topic or a plain UPDATE apply at once; but limit_name only by
-- pulse.set_topic, which also counts what runs.
CREATE TABLE pulse.topics (
    topic        text PRIMARY KEY CHECK (length(topic) <= 200),
    max_attempts int CHECK (max_attempts BETWEEN 1 AND 10000),
    max_crashes  int CHECK (max_crashes BETWEEN 1 AND 10000),
    timeout_s    float8 CHECK (timeout_s > 0 AND timeout_s <= 1e9),
    stall_s      float8 CHECK (stall_s > 0 AND stall_s <= 1e9),
    lease_s      float8 CHECK (lease_s > 0 AND lease_s <= 1e9),         -- used if it is longer than the server's
    retention_s  float8 CHECK (retention_s >= 0 AND retention_s <= 1e9),             -- of completed and canceled jobs
    retention_dead_s float8 CHECK (retention_dead_s >= 0 AND retention_dead_s <= 1e9),
    ageing_s     float8 CHECK (ageing_s >= 0 AND ageing_s <= 1e9),      -- seconds of waiting that are worth one priority; 0: strict order
    -- How long to wait after the n-th charged try, as pulse.backoff_s reads it; NULL: quadratic.
    backoff      text CONSTRAINT topics_backoff CHECK (length(backoff) <= 500 AND backoff ~
        '^(quadratic(:\d{1,9}(\.\d{1,6})?)?|exponential(:\d{1,9}(\.\d{1,6})?){0,2}|fixed:\d{1,9}(\.\d{1,6})?|list:\d{1,9}(\.\d{1,6})?(,\d{1,9}(\.\d{1,6})?)*)$'),
    limit_name   text CHECK (length(limit_name) BETWEEN 1 AND 200),    -- the limit that its jobs count against; NULL: the one with its name
    publish      boolean,                           -- the ends of its jobs go to pulse.outbox
    CONSTRAINT topics_server CHECK (topic <> '' OR (max_attempts IS NOT NULL AND max_crashes IS NOT NULL))
);

INSERT INTO pulse.topics (topic, max_attempts, max_crashes) VALUES ('', 5, 3);

-- Limits: how many jobs run at once, and how many start per second. Each has the row (name, ''), for all jobs of the topics that go by
-- it: claims lock that row. (name, '*') is for each of their groups, (name, g) for the group g: what differs there, and the state of
-- its bucket. There is no counter of what runs: a slot is a RUNNING row, so whatever ends the attempt frees it, a crash too.
CREATE TABLE pulse.limits (
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    group_key   text NOT NULL DEFAULT '' CHECK (length(group_key) <= 200),
    concurrency int CHECK (concurrency BETWEEN 0 AND 1000000),      -- most RUNNING at once; 0: paused
    burst       int CHECK (burst BETWEEN 1 AND 1000000),            -- how many may start together; NULL: those of a second, 1 at least
    rate        float8 CHECK (rate BETWEEN 1e-6 AND 1e6),           -- starts per second
    sequence    text CHECK (sequence IN ('continue', 'halt')),      -- of '*': one at a time, in order; what a dead letter does to the others
    claims      bigint NOT NULL DEFAULT 0,          -- grows with each claim and change: what a claim was computed from
    oldest_at   timestamptz,                        -- no slot was taken before; NULL: not known
    tokens      float8,                             -- starts that were left ...
    tokens_at   timestamptz,                        -- ... at that time; both NULL: as many as may start together
    declared_by text,                               -- of '': the application whose code declares it; NULL: an operator set it
    undeclared_at timestamptz,                      -- of '': since when that code does not declare it any more
    PRIMARY KEY (name, group_key),
    CONSTRAINT limits_burst CHECK (burst IS NULL OR rate IS NOT NULL),
    CONSTRAINT limits_sequence CHECK (sequence IS NULL OR (group_key = '*' AND coalesce(concurrency, 1) <= 1)),
    CONSTRAINT limits_tokens CHECK ((tokens IS NULL) = (tokens_at IS NULL))
) WITH (fillfactor = 50);

-- Empty if no row sets the option: then the hot statements pay only for one look.
CREATE INDEX idx_topics_backoff ON pulse.topics (topic) WHERE backoff IS NOT NULL;
CREATE INDEX idx_handlers_backoff ON pulse.handlers (name) WHERE backoff IS NOT NULL;
CREATE INDEX idx_handlers_events ON pulse.handlers (name) WHERE on_dead_letter IS NOT NULL OR on_crash IS NOT NULL;
CREATE INDEX idx_topics_lease ON pulse.topics (topic) WHERE lease_s IS NOT NULL;
CREATE INDEX idx_topics_publish ON pulse.topics (topic) WHERE publish;
CREATE INDEX idx_topics_live ON pulse.topics (topic)
    WHERE stall_s IS NOT NULL OR lease_s IS NOT NULL OR retention_s IS NOT NULL OR retention_dead_s IS NOT NULL OR ageing_s IS NOT NULL;

-- Seconds to wait after charged try number tries (the first is 1). Exponential waits are drawn between half and the whole
-- of FIRST * 2 ^ (tries - 1), LONGEST at most, so that jobs that failed together are not retried together.
CREATE FUNCTION pulse.backoff_s(policy text, tries int) RETURNS float8
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE split_part(policy, ':', 1)
        WHEN 'fixed' THEN split_part(policy, ':', 2)::float8
        WHEN 'list' THEN (SELECT d[least(greatest(tries, 1), cardinality(d))]::float8
                          FROM string_to_array(split_part(policy, ':', 2), ',') AS d)
        WHEN 'exponential' THEN (0.5 + random() / 2) * least(
            coalesce(nullif(split_part(policy, ':', 3), '')::float8, 3600),
            coalesce(nullif(split_part(policy, ':', 2), '')::float8, 1) * 2 ^ least(greatest(tries, 1) - 1, 40))
        ELSE least(coalesce(nullif(split_part(policy, ':', 2), '')::float8, 1) * tries::float8 ^ 2, 1e9) END
$$;

-- NOTIFY, unless the queue is half full because a listener stays in a transaction: with a full queue the sender's commit
-- would fail. Notifications are hints: polling finds the same a little later.
CREATE FUNCTION pulse.tell(channel text, message text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, message);
    END IF;
END
$$;

-- Servers that keep policies in memory read them again.
CREATE FUNCTION pulse.tell_topics() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pulse.tell('pulse_gate', 'topics');
    RETURN NULL;
END
$$;

CREATE TRIGGER topics_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON pulse.topics
    FOR EACH STATEMENT EXECUTE FUNCTION pulse.tell_topics();

-- Change the given options of a topic's policy: a value sets one, null unsets it. A topic's row without options is deleted.
-- Topic '' takes the server's defaults that are not among its settings.
CREATE FUNCTION pulse.set_topic(topic text, policy jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mine  constant text[] := ARRAY['timeout_s', 'stall_s'];
    every constant text[] := ARRAY['max_attempts', 'max_crashes', 'timeout_s', 'stall_s', 'lease_s', 'retention_s',
                                   'retention_dead_s', 'ageing_s', 'backoff', 'limit', 'publish'];
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
    IF policy ? 'limit' THEN
        IF jsonb_typeof(policy->'limit') NOT IN ('null', 'string') OR length(policy->>'limit') NOT BETWEEN 1 AND 200 THEN
            RAISE EXCEPTION 'limit of % is %; the name of a limit, 1 to 200 characters, is allowed', named, left((policy->'limit')::text, 50)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM pulse.await_claims();  -- what they take counts where the topic goes by until now; it is counted anew below
    END IF;
    IF jsonb_typeof(policy->'publish') NOT IN ('null', 'boolean') THEN
        RAISE EXCEPTION 'publish of % is %; true or false is allowed', named, left((policy->'publish')::text, 50)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    BEGIN
        INSERT INTO pulse.topics AS t (topic, max_attempts, max_crashes, timeout_s, stall_s, lease_s, retention_s, retention_dead_s,
                                       ageing_s, backoff, limit_name, publish)
        SELECT set_topic.topic, coalesce((p.max_attempts)::int, s.max_attempts), coalesce((p.max_crashes)::int, s.max_crashes),
               p.timeout_s, p.stall_s, p.lease_s, p.retention_s, p.retention_dead_s, p.ageing_s, p.backoff, p."limit", p.publish
        FROM jsonb_to_record(policy) AS p(max_attempts numeric, max_crashes numeric, timeout_s float8, stall_s float8, lease_s float8,
                                          retention_s float8, retention_dead_s float8, ageing_s float8, backoff text, "limit" text, publish boolean)
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
            backoff = CASE WHEN policy ? 'backoff' THEN excluded.backoff ELSE t.backoff END,
            limit_name = CASE WHEN policy ? 'limit' THEN excluded.limit_name ELSE t.limit_name END,
            publish = CASE WHEN policy ? 'publish' THEN excluded.publish ELSE t.publish END;
    EXCEPTION WHEN check_violation THEN  -- all else was looked at above
        RAISE EXCEPTION 'backoff of % is %; allowed are quadratic[:UNIT], exponential[:FIRST[:LONGEST]], fixed:SECONDS, '
            'list:SECONDS,SECONDS,... with seconds from 0 to 999999999', named, left((policy->'backoff')::text, 80)
            USING ERRCODE = 'invalid_parameter_value';
    END;
    DELETE FROM pulse.topics t
    WHERE t.topic = set_topic.topic
      AND num_nonnulls(t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, t.ageing_s,
                       t.backoff, t.limit_name, t.publish) = 0;
    IF policy ? 'limit' THEN
        PERFORM pulse.count_slots();
        PERFORM pulse.tell('pulse_gate', 'limits');
    END IF;
    PERFORM pulse.note(CASE jsonb_strip_nulls(policy) WHEN '{}' THEN 'topics.unset' ELSE 'topics.set' END, topic => set_topic.topic,
        detail => policy);
END
$$;

-- Jobs that the database refuses to change: a corrupt value, a trigger that raises. They are set aside here, so that all others
-- go on. Each is tried by itself from next_try_at on, and removed from here when that works.
-- No foreign key: it would lock rows that cannot be read.
CREATE TABLE pulse.set_aside (
    job_id      uuid PRIMARY KEY,
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_try_at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- infinity: an operator set it aside
    tries       int NOT NULL DEFAULT 1,
    sqlstate    text NOT NULL,
    statement   text NOT NULL,                      -- name of the refused statement in pulse/store/sql
    error       text NOT NULL
);

-- A new epoch begins when the database has gone back in time, by a restore or a failover with a gap, so that it has an older state
-- than the hosts have seen. Attempts of jobs that may be older than the newest epoch are numbered above attempts_floor, which is
-- above all earlier numbers: so (id, attempts) still names one claim for ever. Of old rows only reopened and detail change.
CREATE TABLE pulse.epochs (
    epoch        int PRIMARY KEY CHECK (epoch >= 1),
    began_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts_floor int NOT NULL DEFAULT 0 CHECK (attempts_floor >= 0),
    reopened     int CHECK (reopened >= 0),         -- finished jobs that the database listed as open; NULL: no host knew any
    timeline     int,                               -- of PostgreSQL, when it began ...
    system_id    text,                              -- ... and the cluster's identifier
    first_id     uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',  -- timed ids from here on were made in this epoch
    went_back_to timestamptz,                       -- the newest time in the database ...
    known_until  timestamptz,                       -- ... and the newest that this host had seen in it before
    host         text,                              -- the host that noticed
    lineage      uuid,                              -- of epoch 1: id of the database, which restored copies keep
    detail       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(detail) = 'object'),
    CONSTRAINT epochs_lineage CHECK ((epoch = 1) = (lineage IS NOT NULL))
);

INSERT INTO pulse.epochs (epoch, lineage) VALUES (1, gen_random_uuid());

-- Each dispatcher has a row here, its witness: it increments the counter about once a second, and keeps the value on its own disk,
-- too. If the database has a smaller counter, or no such row, it has gone back in time.
CREATE TABLE pulse.witnesses (
    instance uuid PRIMARY KEY,                      -- random, kept in the host's state directory
    counter  bigint NOT NULL CHECK (counter >= 1),
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    epoch    int NOT NULL,                          -- the newest epoch that it has accepted
    highest  int NOT NULL,                          -- it has handed out no attempt with a higher number
    place    text NOT NULL,                         -- server, timeline, start and table that this row was written in
    host     text NOT NULL
) WITH (fillfactor = 50);

-- Hosts that run a supervisor, refreshed at every sweep.
CREATE TABLE pulse.hosts (
    host    text NOT NULL,
    boot    text NOT NULL,
    pidns   bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (host, boot, pidns)
);

-- When a watchdog swept last, by the database's clock. A gap between two sweeps means that the database or every watchdog
-- was away, so leases may have lapsed because workers could not extend them: for one lease no attempt is ended for that.
CREATE TABLE pulse.sweep_mark (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    swept_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    wait_until timestamptz NOT NULL DEFAULT '-infinity'
);

INSERT INTO pulse.sweep_mark DEFAULT VALUES;

-- How far the deletion of old jobs has got, for people to see. One round goes through all jobs that may be old enough.
CREATE TABLE pulse.retention_mark (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    stepped_at timestamptz,                         -- the newest step, of whichever server
    began_at   timestamptz,                         -- of this round
    walked     bigint NOT NULL DEFAULT 0,           -- jobs looked at in this round ...
    gone       bigint NOT NULL DEFAULT 0,           -- ... and deleted
    ended_at   timestamptz,                         -- of the last whole round
    last_began_at timestamptz,
    last_walked bigint NOT NULL DEFAULT 0,
    last_gone  bigint NOT NULL DEFAULT 0,
    total_gone bigint NOT NULL DEFAULT 0
);

INSERT INTO pulse.retention_mark DEFAULT VALUES;

-- Changes by operators: one row for each request that changed something, written in its transaction.
CREATE TABLE pulse.audit (
    id          bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    uid         bigint CHECK (uid >= 0),            -- of the process that sent the request, from the kernel; NULL: by TCP or SQL
    schedule_id uuid,
    job_id      uuid,                               -- if it is about a single job
    pid         int,
    jobs        int CHECK (jobs >= 0),              -- how many were changed
    action      text NOT NULL CHECK (length(action) BETWEEN 1 AND 64),
    user_name   text,                               -- of the uid, of the credentials, or of the database's role
    behalf      text,                               -- on whose behalf that process says it asked: the user of a dashboard
    host        text,                               -- the server that got the request; of SQL: the client's address
    topic       text,
    detail      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(detail) = 'object')
);

CREATE INDEX idx_audit_at ON pulse.audit (at, id);

-- Write an audit entry. The operator is in the setting pulse.operator, which the server sets for the transaction; else the role.
-- It has its owner's rights, so that roles which may change schedules need no rights on the audit.
CREATE FUNCTION pulse.note(action text, topic text DEFAULT NULL, schedule_id uuid DEFAULT NULL, job_id uuid DEFAULT NULL,
                           jobs int DEFAULT NULL, detail jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- RUNNING rows count against the limit that applies to their topic now. One that a claim without this limit has just taken is not
-- seen yet: who adds a limit locks the table before.
CREATE FUNCTION pulse.count_slots() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    WITH wrong AS (
        SELECT j.id, x.name FROM pulse.jobs j
        LEFT JOIN pulse.topics t ON t.topic = j.topic
        LEFT JOIN pulse.limits x ON x.name = coalesce(t.limit_name, j.topic) AND x.group_key = ''
        WHERE j.status = 'RUNNING' AND j.counted_by IS DISTINCT FROM x.name
        ORDER BY j.id FOR UPDATE OF j
    ), counted AS (
        UPDATE pulse.jobs j SET counted_by = w.name FROM wrong w WHERE j.id = w.id AND j.status = 'RUNNING' RETURNING j.counted_by
    )
    UPDATE pulse.limits x SET oldest_at = NULL, claims = x.claims + 1
    WHERE x.group_key = '' AND x.name IN (SELECT c.counted_by FROM counted c);
END
$$;

-- Set options of a limit: a value sets one, null unsets it. Without a group: concurrency, rate and burst of all jobs that go by
-- it, group_concurrency, group_rate, group_burst and sequence of each group. With one: what differs for this group.
CREATE FUNCTION pulse.set_limit(name text, group_key text, policy jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    own   constant text[] := ARRAY['concurrency', 'rate', 'burst'];
    every constant text[] := own || CASE WHEN set_limit.group_key IS NULL
                                         THEN ARRAY['group_concurrency', 'group_rate', 'group_burst', 'sequence'] ELSE '{}' END;
    named text := CASE WHEN set_limit.group_key IS NOT NULL THEN format('group "%s" of ', left(set_limit.group_key, 50)) ELSE '' END
                  || format('limit "%s"', left(set_limit.name, 50));
    wrong text;
BEGIN
    IF set_limit.name IS NULL OR length(set_limit.name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'the name of a limit is %; 1 to 200 characters are allowed', coalesce(quote_literal(left(set_limit.name, 50)), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF length(set_limit.group_key) NOT BETWEEN 1 AND 200 OR set_limit.group_key = '*' THEN
        RAISE EXCEPTION 'the group of % is %; 1 to 200 characters are allowed, but not * alone', format('limit "%s"', left(set_limit.name, 50)),
            quote_literal(left(set_limit.group_key, 50)) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(policy) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the policy of % must be a JSON object of options, not %', named, coalesce(jsonb_typeof(policy), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT key INTO wrong FROM jsonb_object_keys(policy) AS key WHERE key <> ALL (every) ORDER BY key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%" of %; allowed are %', left(wrong, 50), named, array_to_string(every, ', ')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT format('%s of %s is %s; %s allowed', e.key, named, left(e.value::text, 50), r.allowed) INTO wrong
    FROM jsonb_each(policy) AS e
    JOIN (VALUES ('concurrency', 0, 1e6, true, 'a whole number from 0 to 1000000 is'), ('burst', 1, 1e6, true, 'a whole number from 1 to 1000000 is'),
                 ('rate', 1e-6, 1e6, false, 'starts per second from 0.000001 to 1000000 are'))
        AS r(key, least, most, whole, allowed) ON r.key = replace(e.key, 'group_', '')
    WHERE CASE jsonb_typeof(e.value)
        WHEN 'null' THEN false
        WHEN 'number' THEN e.value::numeric NOT BETWEEN r.least AND r.most OR (r.whole AND e.value::numeric <> trunc(e.value::numeric))
        ELSE true END
    ORDER BY e.key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF policy->>'sequence' NOT IN ('continue', 'halt') THEN
        RAISE EXCEPTION 'sequence of % is %; allowed are continue, halt', named, left((policy->'sequence')::text, 50)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    -- A claim reads the limits, so a table lock waits until those that do not know this one yet have ended, and what they took is
    -- counted below. They take milliseconds. A session that holds it longer is no claim, but perhaps a dump.
    IF NOT EXISTS (SELECT FROM pulse.limits x WHERE x.name = set_limit.name AND x.group_key = '') THEN
        PERFORM pulse.await_claims();
    END IF;
    BEGIN
        INSERT INTO pulse.limits AS x (name) VALUES (set_limit.name)  -- first of all: its lock keeps claims and other changes away
        ON CONFLICT (name, group_key) DO UPDATE SET claims = x.claims + 1, oldest_at = NULL;
        INSERT INTO pulse.limits (name, group_key)
        SELECT set_limit.name, g.group_key
        FROM (VALUES (coalesce(set_limit.group_key, ''), own), ('*', ARRAY['group_concurrency', 'group_rate', 'group_burst', 'sequence']))
            AS g(group_key, options)
        WHERE policy ?| g.options ON CONFLICT DO NOTHING;
        UPDATE pulse.limits x SET
            concurrency = CASE WHEN policy ? o.concurrency THEN (policy->>o.concurrency)::numeric::int ELSE x.concurrency END,
            rate = CASE WHEN policy ? o.rate THEN (policy->>o.rate)::float8 ELSE x.rate END,
            burst = CASE WHEN policy ? o.burst THEN (policy->>o.burst)::numeric::int ELSE x.burst END,
            sequence = CASE WHEN policy ? o.sequence THEN policy->>o.sequence ELSE x.sequence END
        FROM (VALUES (coalesce(set_limit.group_key, ''), 'concurrency', 'rate', 'burst', 'none'),
                     ('*', 'group_concurrency', 'group_rate', 'group_burst', 'sequence')) AS o(group_key, concurrency, rate, burst, sequence)
        WHERE x.name = set_limit.name AND x.group_key = o.group_key;
    EXCEPTION WHEN check_violation THEN  -- all else was looked at above
        RAISE EXCEPTION '% has a burst without a rate, or a sequence with a group_concurrency above 1; neither is allowed', named
            USING ERRCODE = 'invalid_parameter_value';
    END;
    PERFORM pulse.count_slots();
    PERFORM pulse.note('limits.set', detail => jsonb_strip_nulls(jsonb_build_object('name', set_limit.name, 'group_key', set_limit.group_key)) || policy);
    PERFORM pulse.tell('pulse_gate', 'limits');
END
$$;

-- Wait until every statement that reads the limits has ended, for a second at most. New ones wait meanwhile.
CREATE FUNCTION pulse.await_claims() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    LOCK TABLE pulse.limits IN ACCESS EXCLUSIVE MODE;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$;

-- Remove a limit with all that is set for its groups, or what differs for one group. False: there is no such thing.
CREATE FUNCTION pulse.unset_limit(name text, group_key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    UPDATE pulse.limits x SET claims = x.claims + 1 WHERE x.name = unset_limit.name AND x.group_key = '';
    IF unset_limit.group_key IS NULL THEN
        DELETE FROM pulse.limits x WHERE x.name = unset_limit.name;
    ELSE  -- its bucket stays as empty as it is
        UPDATE pulse.limits x SET concurrency = NULL, rate = NULL, burst = NULL
        WHERE x.name = unset_limit.name AND x.group_key = unset_limit.group_key AND x.group_key NOT IN ('', '*')
          AND num_nonnulls(x.concurrency, x.rate) > 0;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pulse.count_slots();
    PERFORM pulse.note('limits.unset', detail => jsonb_strip_nulls(jsonb_build_object('name', unset_limit.name, 'group_key', unset_limit.group_key)));
    PERFORM pulse.tell('pulse_gate', 'limits');
    RETURN true;
END
$$;

-- UUID version 7 (RFC 9562): neighbours in time are neighbours in the index. Never used as an order: clocks step back.
DO $install$
BEGIN
    IF current_setting('server_version_num')::int >= 180000 THEN
        EXECUTE 'CREATE FUNCTION pulse.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
                 BEGIN ATOMIC SELECT pg_catalog.uuidv7(); END';
    ELSE
        -- 48 bits of milliseconds over a random uuid, and the version: 4 (0100) becomes 7 (0111) by two bits.
        EXECUTE $body$
            CREATE FUNCTION pulse.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
            BEGIN ATOMIC
                SELECT encode(
                    set_bit(set_bit(
                        overlay(uuid_send(gen_random_uuid())
                                placing substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                                FROM 1 FOR 6),
                        52, 1), 53, 1),
                    'hex')::uuid;
            END
        $body$;
    END IF;
END
$install$;

-- What is wrong with the times of a job, in one line; NULL: nothing. An expiry in the past is allowed: a submit whose answer
-- was lost is repeated unchanged.
CREATE FUNCTION pulse.time_problem(run_at timestamptz, delay_s float8, expires_at timestamptz, expires_in_s float8) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN delay_s IS NOT NULL AND run_at IS NOT NULL THEN 'run_at and delay_s are both given; one of them is allowed'
        WHEN NOT (delay_s >= 0 AND delay_s <= 1e9) THEN format('delay_s is %s; seconds from 0 to 1e9 are allowed', delay_s)
        WHEN expires_in_s IS NOT NULL AND expires_at IS NOT NULL THEN 'expires_at and expires_in_s are both given; one of them is allowed'
        WHEN NOT (expires_in_s > 0 AND expires_in_s <= 1e9) THEN
            format('expires_in_s is %s; seconds above 0, at most 1e9, are allowed', expires_in_s)
        WHEN expires_at <= run_at THEN format('expires_at is %s; a time after run_at (%s) is allowed', expires_at, run_at) END
$$;

-- Notifies the dispatchers of every host that there is work: at most once in 50 ms for all submits by SQL, since NOTIFY makes
-- all commits of a cluster wait for each other. A sequence holds the time of the last one, in Unix ms: it is read and set
-- without waiting for other transactions. `SET pulse.notify = off` turns it off for a session: PREPARE TRANSACTION is not
-- possible after a NOTIFY.
CREATE SEQUENCE pulse.work_notified;
GRANT SELECT, UPDATE ON SEQUENCE pulse.work_notified TO PUBLIC;  -- for all that may submit; it is of no other use

CREATE FUNCTION pulse.notify_work() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    IF (SELECT now_ms - last_value NOT BETWEEN 0 AND 50 FROM pulse.work_notified)
       AND current_setting('pulse.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM setval('pulse.work_notified', now_ms), pulse.tell('pulse_work', '');
    END IF;
END
$$;

-- Is there a job with this id, name, topic and args? It has its owner's rights, for roles that may submit but not read jobs: it
-- reveals no more than a submit does. Only they may call it.
CREATE FUNCTION pulse.is_stored_unseen(id uuid, name text, topic text, args jsonb) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pulse.jobs j WHERE j.id = is_stored_unseen.id AND j.name = is_stored_unseen.name
                                              AND j.topic = is_stored_unseen.topic
                                              AND (j.args = is_stored_unseen.args OR j.args ? '$pulse' AND is_stored_unseen.args ? '$pulse'))
$$;

REVOKE ALL ON FUNCTION pulse.is_stored_unseen(uuid, text, text, jsonb) FROM PUBLIC;

-- The same for every role: one that may read jobs uses its own rights.
CREATE FUNCTION pulse.is_stored(id uuid, name text, topic text, args jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT bool_and(has_column_privilege('pulse.jobs', c.needed, 'SELECT')) FROM unnest(ARRAY['id', 'name', 'topic', 'args']) AS c(needed)) THEN
        RETURN EXISTS (SELECT FROM pulse.jobs j WHERE j.id = is_stored.id AND j.name = is_stored.name
                                                  AND j.topic = is_stored.topic
                                                  AND (j.args = is_stored.args OR j.args ? '$pulse' AND is_stored.args ? '$pulse'));
    END IF;
    RETURN pulse.is_stored_unseen(id, name, topic, args);
END
$$;

-- What is wrong with the unique key of a job, in one line; NULL: nothing.
CREATE FUNCTION pulse.unique_problem(unique_key text, unique_until text, on_conflict text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN unique_key IS NULL THEN CASE WHEN num_nonnulls(unique_until, on_conflict) > 0
            THEN 'unique_until or on_conflict is given; they are allowed with unique_key only' END
        WHEN length(unique_key) NOT BETWEEN 1 AND 500 THEN format('unique_key is %L; 1 to 500 characters are allowed', left(unique_key, 50))
        WHEN unique_until NOT IN ('start', 'end') THEN format('unique_until is %L; allowed are start, end', left(unique_until, 50))
        WHEN on_conflict NOT IN ('skip', 'replace', 'error')
            THEN format('on_conflict is %L; allowed are skip, replace, error', left(on_conflict, 50)) END
$$;

-- What is wrong with the group of a job, in one line; NULL: nothing. In a limit, * stands for each group.
CREATE FUNCTION pulse.group_problem(group_key text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN length(group_key) NOT BETWEEN 1 AND 200 OR group_key = '*'
        THEN format('group_key is %L; 1 to 200 characters are allowed, but not * alone', left(group_key, 50)) END
$$;

-- What is wrong with the jobs that a job is to wait for, in one line; NULL: nothing.
CREATE FUNCTION pulse.after_problem(after jsonb, on_failure text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN coalesce(jsonb_typeof(after), 'null') = 'null' THEN CASE WHEN on_failure IS NOT NULL
            THEN 'on_failure is given; it is allowed with after only' END
        WHEN jsonb_typeof(after) <> 'array' OR jsonb_path_exists(after, '$[*] ? (@.type() != "string")') OR jsonb_array_length(after) > 10000
            THEN format('after is %s; an array of up to 10000 ids of jobs is allowed', left(after::text, 50))
        WHEN on_failure NOT IN ('cancel', 'run') THEN format('on_failure is %L; allowed are cancel, run', left(on_failure, 50)) END
$$;

-- The job that is there instead of a new one with this id and key: the same submit, stored before, or the job that has the key.
-- With `replace` it gets the new args and times, if it waits. No row: the key is free again. It has its owner's rights, for
-- roles that may submit but neither read nor change jobs: who knows a key learns the id of its job, and may replace its args, which
-- is what a submit is for. Only they may call it.
CREATE FUNCTION pulse.unique_holder(
    id uuid, name text, topic text, args jsonb, next_run_at timestamptz, expires_at timestamptz, unique_key text, on_conflict text
) RETURNS TABLE (job_id uuid, level_topic text, level_priority smallint, due_at timestamptz, level_group text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    other record;
BEGIN
    SELECT j.name, j.topic, j.args, j.unique_key INTO other FROM pulse.jobs j WHERE j.id = unique_holder.id;
    IF FOUND THEN  -- its args may have been replaced since
        IF (other.name, other.topic) IS DISTINCT FROM (unique_holder.name, unique_holder.topic)
           OR other.unique_key IS DISTINCT FROM unique_holder.unique_key AND other.args <> unique_holder.args
               AND NOT (other.args ? '$pulse' AND unique_holder.args ? '$pulse') THEN
            RAISE EXCEPTION 'job % exists already with another name, topic or args', unique_holder.id USING ERRCODE = 'unique_violation';
        END IF;
        RETURN QUERY SELECT unique_holder.id, NULL::text, NULL::smallint, NULL::timestamptz, NULL::text;
        RETURN;
    END IF;
    IF on_conflict = 'replace' THEN
        RETURN QUERY UPDATE pulse.jobs j
        SET args = unique_holder.args, expires_at = unique_holder.expires_at,  -- a job that is held back stays so
            run_after = CASE WHEN j.waiting_on > 0 THEN unique_holder.next_run_at END,
            next_run_at = CASE WHEN j.next_run_at < '9999-12-30 00:00+00' THEN unique_holder.next_run_at ELSE j.next_run_at END
        WHERE j.unique_key = unique_holder.unique_key AND j.unique_until IS NOT NULL AND j.completed_at IS NULL
          AND (j.unique_until = 'end' OR j.attempts = 0) AND j.status::text IN ('PENDING', 'RETRYING') AND j.name = unique_holder.name
        RETURNING j.id, j.topic, j.priority, j.next_run_at::timestamptz, j.group_key;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT j.id, j.name INTO other FROM pulse.jobs j
    WHERE j.unique_key = unique_holder.unique_key AND j.unique_until IS NOT NULL AND j.completed_at IS NULL
      AND (j.unique_until = 'end' OR j.attempts = 0);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF on_conflict = 'error' THEN
        RAISE EXCEPTION 'unique key % belongs to job %', quote_literal(unique_key), other.id USING ERRCODE = 'unique_violation';
    END IF;
    IF on_conflict = 'replace' AND other.name <> unique_holder.name THEN
        RAISE EXCEPTION 'unique key % belongs to job % of another handler; only one of the same handler can be replaced',
            quote_literal(unique_key), other.id USING ERRCODE = 'unique_violation';
    END IF;
    RETURN QUERY SELECT other.id, NULL::text, NULL::smallint, NULL::timestamptz, NULL::text;
END
$$;

REVOKE ALL ON FUNCTION pulse.unique_holder(uuid, text, text, jsonb, timestamptz, timestamptz, text, text) FROM PUBLIC;

-- Insert a job that has a unique key, and whose options are resolved and checked; on_conflict says what happens if the key is taken.
-- Returns the given id, or the id of the job that has the key; and where it waits, if it is new or was changed.
CREATE FUNCTION pulse.insert_unique(
    id uuid, name text, topic text, args jsonb, priority int, next_run_at timestamptz, max_attempts int, timeout_s float8,
    expires_at timestamptz, traceparent text, group_key text, unique_key text, unique_until text, on_conflict text, waiting_on int DEFAULT NULL
) RETURNS TABLE (job_id uuid, level_topic text, level_priority smallint, due_at timestamptz, level_group text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    most_rounds constant int := 20;                 -- the key changes hands between two statements: rare once, and unheard of twice
BEGIN
    FOR round IN 1..most_rounds LOOP
        INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at, traceparent, group_key,
                                unique_key, unique_until, waiting_on, run_after, is_parent)
        VALUES (insert_unique.id, insert_unique.name, insert_unique.topic, insert_unique.args, insert_unique.priority,
                CASE WHEN insert_unique.waiting_on > 0 THEN '9999-12-30 00:00+00' ELSE insert_unique.next_run_at END,
                insert_unique.max_attempts, insert_unique.timeout_s, insert_unique.expires_at,
                insert_unique.traceparent, insert_unique.group_key, insert_unique.unique_key, coalesce(insert_unique.unique_until, 'end'),
                insert_unique.waiting_on, CASE WHEN insert_unique.waiting_on > 0 THEN insert_unique.next_run_at END,
                (SELECT true FROM pulse.topics t WHERE t.topic = insert_unique.topic AND t.publish))
        ON CONFLICT DO NOTHING;  -- waits for a transaction that has inserted the same key
        IF FOUND THEN
            RETURN QUERY SELECT insert_unique.id, insert_unique.topic, insert_unique.priority::smallint, insert_unique.next_run_at,
                insert_unique.group_key;
            RETURN;
        END IF;
        RETURN QUERY SELECT h.* FROM pulse.unique_holder(insert_unique.id, insert_unique.name, insert_unique.topic, insert_unique.args,
            insert_unique.next_run_at, insert_unique.expires_at, insert_unique.unique_key, insert_unique.on_conflict) AS h;  -- NULL: skip
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'job % is not stored, without an error: a trigger or a rule that is not pulse''s drops it', insert_unique.id
        USING ERRCODE = 'no_data_found';
END
$$;

-- The options of one job: its own, else its handler's, else its topic's, else the server's. For many rows it costs a fifth more
-- than joins do, so pulse.submit_many and the statements of the server have the joins written out (fragment resolved_options in
-- pulse/store/sql/submit.sql). BEGIN ATOMIC binds names when the function is created: it needs no search_path, and
-- the planner can inline it.
CREATE FUNCTION pulse.resolved_options(name text, own_topic text, own_max_attempts int, own_timeout_s float8)
RETURNS TABLE (topic text, max_attempts int, timeout_s float8, is_parent boolean)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(own_topic, h.topic, 'default'), coalesce(own_max_attempts, h.max_attempts, t.max_attempts, s.max_attempts),
           coalesce(own_timeout_s, h.timeout_s, t.timeout_s, s.timeout_s), nullif(t.publish, false)
    FROM (VALUES (1)) AS one
    LEFT JOIN pulse.handlers h ON h.name = resolved_options.name
    LEFT JOIN pulse.topics t ON t.topic = coalesce(own_topic, h.topic, 'default')
    LEFT JOIN pulse.topics s ON s.topic = '';
END;

-- Submit many jobs from SQL: a JSON array of objects with the keys of pulse.submit. Returns the ids in the same order.
-- All or none. The n-th job of one call is due n microseconds after the first: submit order is run order.
CREATE FUNCTION pulse.submit_many(jobs jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    made  uuid[];
    fresh bigint;
    plain bigint;
    keyed boolean;
    grouped boolean;
    waits boolean;
    one   record;
    bad   text;
BEGIN
    IF jobs IS NULL OR jsonb_typeof(jobs) <> 'array' THEN
        RAISE EXCEPTION 'jobs must be a JSON array of objects, not %', coalesce(jsonb_typeof(jobs), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT min(jsonb_typeof(job)) FILTER (WHERE jsonb_typeof(job) <> 'object'),
           coalesce(bool_or(job ?| ARRAY['unique_key', 'unique_until', 'on_conflict']), false),
           coalesce(bool_or(job ? 'group_key'), false), coalesce(bool_or(job ?| ARRAY['after', 'on_failure']), false)
    INTO bad, keyed, grouped, waits FROM jsonb_array_elements(jobs) AS job;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'jobs must be a JSON array of objects, and one of them is of type %', bad
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT k INTO bad FROM jsonb_array_elements(jobs) AS job, jsonb_object_keys(job) AS k
        WHERE k <> ALL (ARRAY['name', 'args', 'topic', 'priority', 'run_at', 'max_attempts', 'timeout_s', 'id', 'expires_at',
                            'expires_in_s', 'traceparent', 'delay_s', 'group_key', 'unique_key', 'unique_until', 'on_conflict',
                            'after', 'on_failure'])
        LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'unknown key "%" in a job; allowed are name, args, topic, priority, run_at, max_attempts, timeout_s, id, expires_at, expires_in_s, traceparent, delay_s, group_key, unique_key, unique_until, on_conflict, after, on_failure', bad
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT o.problem INTO bad
    FROM jsonb_array_elements(jobs) AS e(job)
    CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(run_at timestamptz, delay_s float8, expires_at timestamptz, expires_in_s float8)
    CROSS JOIN LATERAL (SELECT pulse.time_problem(g.run_at, g.delay_s, g.expires_at, g.expires_in_s)) AS o(problem)
    WHERE e.job ?| ARRAY['delay_s', 'expires_at', 'expires_in_s'] AND o.problem IS NOT NULL
    LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT left(e.job->>'traceparent', 80) INTO bad FROM jsonb_array_elements(jobs) AS e(job)
        WHERE e.job->>'traceparent' !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' LIMIT 1;
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'traceparent is %; one of W3C Trace Context is allowed', quote_literal(bad) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF grouped THEN
        SELECT p.problem INTO bad FROM jsonb_array_elements(jobs) AS e(job)
        CROSS JOIN LATERAL pulse.group_problem(e.job->>'group_key') AS p(problem)
        WHERE p.problem IS NOT NULL LIMIT 1;
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF waits THEN
        SELECT p.problem INTO bad FROM jsonb_array_elements(jobs) AS e(job)
        CROSS JOIN LATERAL pulse.after_problem(e.job->'after', e.job->>'on_failure') AS p(problem)
        WHERE p.problem IS NOT NULL LIMIT 1;
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF keyed THEN
        SELECT p.problem INTO bad FROM jsonb_array_elements(jobs) AS e(job)
        CROSS JOIN LATERAL pulse.unique_problem(e.job->>'unique_key', e.job->>'unique_until', e.job->>'on_conflict') AS p(problem)
        WHERE p.problem IS NOT NULL LIMIT 1;
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;

    WITH given AS MATERIALIZED (
        SELECT coalesce(g.id, pulse.uuid7()) AS id, g.name, coalesce(g.args, '{}') AS args, g.topic, coalesce(g.priority, 0) AS priority,
               coalesce(g.run_at, began + coalesce(g.delay_s, 0) * interval '1 second') + (e.place - 1) * interval '1 microsecond' AS run_at,
               g.max_attempts, g.timeout_s, coalesce(g.expires_at, began + g.expires_in_s * interval '1 second') AS expires_at,
               g.traceparent, g.group_key, e.place, e.job->>'unique_key' IS NULL AS is_plain,
               CASE WHEN waits THEN (SELECT nullif(count(DISTINCT a), 0)::int FROM unnest(g.after) AS a) END AS waiting_on
        FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(
            id uuid, name text, args jsonb, topic text, priority smallint, run_at timestamptz, max_attempts int, timeout_s float8,
            expires_at timestamptz, expires_in_s float8, traceparent text, delay_s float8, group_key text, after uuid[])
    ), put AS (
        INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at, traceparent, group_key,
                                waiting_on, run_after, is_parent)
        SELECT g.id, g.name, coalesce(g.topic, h.topic, 'default'), g.args, g.priority,
               CASE WHEN g.waiting_on > 0 THEN '9999-12-30 00:00+00' ELSE g.run_at END,
               coalesce(g.max_attempts, h.max_attempts, t.max_attempts, (SELECT s.max_attempts FROM pulse.topics s WHERE s.topic = '')),
               coalesce(g.timeout_s, h.timeout_s, t.timeout_s, (SELECT s.timeout_s FROM pulse.topics s WHERE s.topic = '')), g.expires_at,
               g.traceparent, g.group_key, g.waiting_on, CASE WHEN g.waiting_on > 0 THEN g.run_at END, nullif(t.publish, false)
        FROM given g
        LEFT JOIN pulse.handlers h ON h.name = g.name
        LEFT JOIN pulse.topics t ON t.topic = coalesce(g.topic, h.topic, 'default')
        WHERE g.is_plain
        ORDER BY g.id
        ON CONFLICT DO NOTHING  -- and RETURNING no column: who may only submit may read none
        RETURNING 1
    )
    SELECT array_agg(g.id ORDER BY g.place), count(*) FILTER (WHERE g.is_plain), (SELECT count(*) FROM put)
    INTO made, plain, fresh FROM given g;

    -- An id that was there already is the same job when name, topic and args are the same, and a conflict otherwise.
    IF fresh < plain THEN
        SELECT made[e.place]::text INTO bad  -- also of a new id: a trigger that is not pulse's may drop the job
        FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
        CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(name text, args jsonb, topic text)
        LEFT JOIN pulse.handlers h ON h.name = g.name
        WHERE e.job->>'unique_key' IS NULL
          AND NOT pulse.is_stored(made[e.place], g.name, coalesce(g.topic, h.topic, 'default'), coalesce(g.args, '{}'))
        LIMIT 1;
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION 'job % exists already with another name, topic or args', bad USING ERRCODE = 'unique_violation';
        END IF;
    END IF;
    IF keyed THEN
        FOR one IN  -- in the order of keys: two calls with the same keys in another order wait for each other, but never in a circle
            SELECT e.place, u.job_id, u.level_topic
            FROM (
                SELECT e.place, g.name, o.topic, coalesce(g.args, '{}') AS args, coalesce(g.priority, 0) AS priority,
                       coalesce(g.run_at, began + coalesce(g.delay_s, 0) * interval '1 second')
                           + (e.place - 1) * interval '1 microsecond' AS run_at,
                       o.max_attempts, o.timeout_s, coalesce(g.expires_at, began + g.expires_in_s * interval '1 second') AS expires_at,
                       g.traceparent, g.group_key, g.unique_key, g.unique_until, g.on_conflict,
                       (SELECT nullif(count(DISTINCT a), 0)::int FROM unnest(g.after) AS a) AS waiting_on
                FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
                CROSS JOIN LATERAL jsonb_to_record(e.job) AS g(
                    name text, args jsonb, topic text, priority smallint, run_at timestamptz, max_attempts int, timeout_s float8,
                    expires_at timestamptz, expires_in_s float8, traceparent text, delay_s float8, group_key text,
                    unique_key text, unique_until text, on_conflict text, after uuid[])
                CROSS JOIN LATERAL pulse.resolved_options(g.name, g.topic, g.max_attempts, g.timeout_s) AS o
                WHERE g.unique_key IS NOT NULL
                ORDER BY g.unique_key, e.place
            ) AS e
            CROSS JOIN LATERAL pulse.insert_unique(made[e.place], e.name, e.topic, e.args, e.priority, e.run_at, e.max_attempts,
                e.timeout_s, e.expires_at, e.traceparent, e.group_key, e.unique_key, e.unique_until, e.on_conflict, e.waiting_on) AS u
        LOOP
            made[one.place] := one.job_id;
            fresh := fresh + (one.level_topic IS NOT NULL)::int;
        END LOOP;
    END IF;
    IF waits THEN
        PERFORM pulse.add_dependencies(array_agg(made[e.place] ORDER BY e.place), array_agg(a.id ORDER BY e.place),
            array_agg(e.job->>'on_failure' ORDER BY e.place))
        FROM jsonb_array_elements(jobs) WITH ORDINALITY AS e(job, place)
        CROSS JOIN LATERAL (SELECT v.id::uuid FROM jsonb_array_elements_text(nullif(e.job->'after', 'null')) AS v(id)) AS a(id);
    END IF;
    IF fresh > 0 THEN
        PERFORM pulse.notify_work();
    END IF;
    RETURN QUERY SELECT unnest(made);
END
$$;

-- Submit one job from SQL, in any language, inside the caller's own transaction. Returns its id.
-- NULL means: the handler, else the topic, else the server decides. The same id with the same name, topic and args is the
-- same job, so a submit whose answer was lost can be repeated. With unique_key it may return the id of the job that has the key.
CREATE FUNCTION pulse.submit(
    name text, args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, id uuid DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    expires_in_s float8 DEFAULT NULL, traceparent text DEFAULT NULL, delay_s float8 DEFAULT NULL,
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, unique_until text DEFAULT NULL, on_conflict text DEFAULT NULL,
    after uuid[] DEFAULT NULL, on_failure text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    parents uuid[];
    due   timestamptz;
    made  uuid := coalesce(submit.id, pulse.uuid7());
    other record;
    bad   text;
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

    IF submit.delay_s IS NOT NULL OR submit.expires_at IS NOT NULL OR submit.expires_in_s IS NOT NULL THEN
        bad := pulse.time_problem(submit.run_at, submit.delay_s, submit.expires_at, submit.expires_in_s);
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF submit.traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' THEN
        RAISE EXCEPTION 'traceparent is %; one of W3C Trace Context is allowed', quote_literal(left(submit.traceparent, 80))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF submit.group_key IS NOT NULL THEN
        bad := pulse.group_problem(submit.group_key);
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF num_nonnulls(submit.after, submit.on_failure) > 0 THEN
        bad := pulse.after_problem(to_jsonb(submit.after), submit.on_failure);
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
        parents := ARRAY(SELECT DISTINCT a.id FROM unnest(submit.after) AS a(id));
    END IF;
    IF num_nonnulls(submit.unique_key, submit.unique_until, submit.on_conflict) > 0 THEN
        bad := pulse.unique_problem(submit.unique_key, submit.unique_until, submit.on_conflict);
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION '%', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT u.* INTO other
        FROM pulse.resolved_options(submit.name, submit.topic, submit.max_attempts, submit.timeout_s) AS o
        CROSS JOIN LATERAL pulse.insert_unique(made, submit.name, o.topic, submit.args, coalesce(submit.priority, 0),
            coalesce(submit.run_at, clock_timestamp() + coalesce(submit.delay_s, 0) * interval '1 second'), o.max_attempts, o.timeout_s,
            coalesce(submit.expires_at, clock_timestamp() + submit.expires_in_s * interval '1 second'), submit.traceparent,
            submit.group_key, submit.unique_key, submit.unique_until, submit.on_conflict, nullif(cardinality(parents), 0)) AS u;
        IF other.level_topic IS NOT NULL THEN
            PERFORM pulse.notify_work();
            IF other.job_id = made AND cardinality(parents) > 0 THEN
                PERFORM pulse.add_dependencies(array_fill(made, ARRAY[cardinality(parents)]), parents,
                    array_fill(submit.on_failure, ARRAY[cardinality(parents)]));
            END IF;
        END IF;
        RETURN other.job_id;
    END IF;

    due := coalesce(submit.run_at, clock_timestamp() + coalesce(submit.delay_s, 0) * interval '1 second');
    INSERT INTO pulse.jobs (id, name, topic, args, priority, next_run_at, max_attempts, timeout_s, expires_at, traceparent, group_key,
                            waiting_on, run_after, is_parent)
    SELECT made, submit.name, o.topic, submit.args, coalesce(submit.priority, 0),
           CASE WHEN cardinality(parents) > 0 THEN '9999-12-30 00:00+00' ELSE due END,
           o.max_attempts, o.timeout_s, coalesce(submit.expires_at, clock_timestamp() + submit.expires_in_s * interval '1 second'),
           submit.traceparent, submit.group_key, nullif(cardinality(parents), 0), CASE WHEN cardinality(parents) > 0 THEN due END, o.is_parent
    FROM pulse.resolved_options(submit.name, submit.topic, submit.max_attempts, submit.timeout_s) AS o
    ON CONFLICT DO NOTHING;  -- without a column that would have to be readable

    IF FOUND THEN
        IF cardinality(parents) > 0 THEN
            PERFORM pulse.add_dependencies(array_fill(made, ARRAY[cardinality(parents)]), parents,
                array_fill(submit.on_failure, ARRAY[cardinality(parents)]));
        END IF;
        PERFORM pulse.notify_work();
    ELSIF NOT pulse.is_stored(made, submit.name, (
        SELECT o.topic FROM pulse.resolved_options(submit.name, submit.topic, NULL, NULL) AS o), submit.args) THEN
        RAISE EXCEPTION 'job % exists already with another name, topic or args', made USING ERRCODE = 'unique_violation';
    END IF;
    RETURN made;
END
$$;

-- The args of a job that tells of another one's end (on_dead_letter, on_crash of its handler).
CREATE FUNCTION pulse.event_args(id uuid, name text, topic text, attempt int, outcome text, error text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('job', jsonb_build_object(
        'id', event_args.id, 'name', event_args.name, 'topic', event_args.topic, 'attempt', event_args.attempt,
        'outcome', event_args.outcome, 'error', coalesce(left(event_args.error, 10000), '')))
$$;

-- Dependencies: a job that waits for others is PENDING, due at 9999-12-30, until all of them have ended. Each statement that ends jobs
-- settles that, by pulse.settle. The watchdog looks for what was forgotten: by SQL that is not pulse's, or a transaction with an old snapshot.
CREATE TABLE pulse.dependencies (
    parent_id  uuid NOT NULL,
    child_id   uuid NOT NULL,
    on_failure text NOT NULL DEFAULT 'cancel' CHECK (on_failure IN ('cancel', 'run')),  -- what the child does if the parent fails
    is_over    boolean NOT NULL DEFAULT false,      -- the parent has ended, and the child no longer waits for it
    PRIMARY KEY (parent_id, child_id)
) WITH (fillfactor = 80);

CREATE INDEX idx_dependencies_child ON pulse.dependencies (child_id);  -- for what a job waits for, and to delete it

-- Outbox: the ends of jobs whose topic publishes them, until a publisher has handed them to a broker. Such jobs are marked as parents when
-- they are submitted, so pulse.settle hears of each end, in the statement that ends the job: the row commits with the end, or neither does.
CREATE TABLE pulse.outbox (
    job_id      uuid NOT NULL,
    ended_at    timestamptz NOT NULL,               -- completed_at of that end, which it tells from others of the same job
    taken_until timestamptz NOT NULL DEFAULT '-infinity',  -- until then a publisher has it in hand
    attempt     int NOT NULL,
    status      pulse.job_status NOT NULL,
    topic       text NOT NULL,
    name        text NOT NULL,
    traceparent text,
    result      jsonb,
    last_error  text,
    PRIMARY KEY (job_id, ended_at)
);

CREATE INDEX idx_outbox_ended ON pulse.outbox (ended_at);

-- Settle the dependencies of jobs that have ended, and of those that are canceled because of that: a child whose last parent this was
-- is due, one of a parent that failed is canceled with the reason, unless it is to run all the same. A parent that was deleted
-- counts as completed.
-- VOLATILE, so that its queries see what had committed when they began, later than the snapshot of the statement that ends the
-- jobs. That statement has locked their rows: so either it sees a new dependency, or the transaction of that one sees the end.
-- LATERAL and BETWEEN make each look a probe of an index, whatever the statistics say.
-- Ends of topics that publish them go to the outbox; is_new is false if these have been settled before, and only a dependency is new.
CREATE FUNCTION pulse.settle(ended uuid[], is_new boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    wave  uuid[] := ended;
    freed boolean := false;
    frees boolean;
BEGIN
    WHILE cardinality(wave) > 0 LOOP
        IF is_new AND EXISTS (SELECT FROM pulse.topics t WHERE t.publish) THEN
            INSERT INTO pulse.outbox (job_id, ended_at, attempt, status, topic, name, traceparent, result, last_error)
            SELECT j.id, j.completed_at, j.attempts, j.status, j.topic, j.name, j.traceparent, j.result, j.last_error
            FROM (SELECT DISTINCT w.id FROM unnest(wave) AS w(id)) AS w
            JOIN pulse.jobs j ON j.id BETWEEN w.id AND w.id AND j.completed_at IS NOT NULL
            WHERE EXISTS (SELECT FROM pulse.topics t WHERE t.topic = j.topic AND t.publish)
            ON CONFLICT DO NOTHING;
        END IF;
        is_new := true;
        WITH edges AS MATERIALIZED (
            SELECT d.parent_id, d.child_id, p.status, p.status <> 'COMPLETED' AND d.on_failure = 'cancel' AS dooms
            FROM (SELECT DISTINCT w.id FROM unnest(wave) AS w(id) ORDER BY w.id) AS e
            CROSS JOIN LATERAL (SELECT (SELECT p.status::text FROM pulse.jobs p WHERE p.id = e.id) AS status) AS p
            CROSS JOIN LATERAL (
                SELECT d.parent_id, d.child_id, d.on_failure FROM pulse.dependencies d
                WHERE d.parent_id = e.id AND NOT d.is_over FOR UPDATE) AS d
            WHERE coalesce(p.status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED'), true)
        ), over AS (
            UPDATE pulse.dependencies d SET is_over = true FROM edges e
            WHERE d.parent_id BETWEEN e.parent_id AND e.parent_id AND d.child_id BETWEEN e.child_id AND e.child_id AND NOT d.is_over
        ), counted AS MATERIALIZED (
            SELECT e.child_id, count(*)::int AS ended, min(e.parent_id || ' is ' || e.status) FILTER (WHERE e.dooms) AS failed
            FROM edges e GROUP BY e.child_id ORDER BY e.child_id
        ), children AS MATERIALIZED (
            SELECT n.*, c.is_doomed FROM counted n
            CROSS JOIN LATERAL (
                SELECT c.status = 'PENDING' AND n.failed IS NOT NULL AS is_doomed FROM pulse.jobs c
                WHERE c.id = n.child_id AND c.waiting_on > 0 FOR UPDATE) AS c
        ), changed AS (
            UPDATE pulse.jobs c
            SET waiting_on = greatest(c.waiting_on - n.ended, 0),
                status = CASE WHEN n.is_doomed THEN 'CANCELED' ELSE c.status END,
                completed_at = CASE WHEN n.is_doomed THEN clock_timestamp() ELSE c.completed_at END,
                last_error = CASE WHEN n.is_doomed THEN 'canceled: it waited for other jobs, and ' || n.failed ELSE c.last_error END,
                next_run_at = CASE WHEN c.waiting_on <= n.ended AND c.completed_at IS NULL  -- what has ended stays as it is
                                   THEN greatest(clock_timestamp(), c.run_after) ELSE c.next_run_at END,
                run_after = CASE WHEN c.waiting_on > n.ended OR c.completed_at IS NOT NULL THEN c.run_after END
            FROM children n WHERE c.id BETWEEN n.child_id AND n.child_id AND c.waiting_on > 0
            RETURNING c.id, c.status, c.is_parent, c.waiting_on
        )
        SELECT array_agg(c.id) FILTER (WHERE c.status = 'CANCELED' AND c.is_parent),
               coalesce(bool_or(c.status = 'PENDING' AND c.waiting_on = 0), false)
        INTO wave, frees FROM changed c;
        freed := freed OR frees;
    END LOOP;
    IF freed AND current_setting('pulse.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pulse.tell('pulse_work', 'released');
    END IF;
END
$$;

-- What is deleted takes its dependencies and signals along; jobs that wait for it wait for it no longer. There is no such trigger for jobs
-- that end: it would cost each claim, heartbeat and completion of all other jobs 4 %. The statements that end jobs settle that themselves.
CREATE FUNCTION pulse.forget_linked() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF OLD.signals IS NOT NULL THEN
        DELETE FROM pulse.signals s WHERE s.job_id = OLD.id;
    END IF;
    IF OLD.waiting_on IS NOT NULL THEN
        DELETE FROM pulse.dependencies d WHERE d.child_id = OLD.id;
    END IF;
    IF OLD.is_parent AND OLD.completed_at IS NULL THEN
        PERFORM pulse.settle(ARRAY[OLD.id]);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER deleted AFTER DELETE ON pulse.jobs
    FOR EACH ROW WHEN (OLD.is_parent OR OLD.waiting_on IS NOT NULL OR OLD.signals IS NOT NULL) EXECUTE FUNCTION pulse.forget_linked();

-- At the commit of the transaction that added a dependency: marks the parent, whose row is locked no longer than that takes, since a
-- handler that runs needs its heartbeats. If it has ended meanwhile, the dependency is settled here.
CREATE FUNCTION pulse.join_parent() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    has_ended boolean;
BEGIN
    UPDATE pulse.jobs p SET is_parent = true WHERE p.id = NEW.parent_id AND p.is_parent IS NULL
    RETURNING p.completed_at IS NOT NULL INTO has_ended;
    IF NOT FOUND THEN
        SELECT p.completed_at IS NOT NULL INTO has_ended FROM pulse.jobs p WHERE p.id = NEW.parent_id FOR SHARE;
    END IF;
    IF coalesce(has_ended, true) AND EXISTS (
        SELECT FROM pulse.dependencies d WHERE d.parent_id = NEW.parent_id AND d.child_id = NEW.child_id AND NOT d.is_over) THEN
        PERFORM pulse.settle(ARRAY[NEW.parent_id], false);
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER joined AFTER INSERT ON pulse.dependencies DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION pulse.join_parent();

-- Add the dependencies of jobs that this transaction has inserted, and whose waiting_on says already how many there are: others
-- are left alone, so that nobody can make them wait, and a submit can be repeated. One element for each dependency, in the order in
-- which the jobs were submitted: a job can wait only for earlier ones.
CREATE FUNCTION pulse.add_dependencies(children uuid[], parents uuid[], on_failures text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    bad   record;
    ended uuid[];
BEGIN
    SELECT e.child, e.parent INTO bad
    FROM unnest(children, parents) WITH ORDINALITY AS e(child, parent, place)
    JOIN (SELECT c.child, max(c.place) AS place FROM unnest(children) WITH ORDINALITY AS c(child, place) GROUP BY c.child) AS last
        ON last.child = e.parent
    WHERE last.place >= e.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % is to wait for job %; only a job that was submitted before it is allowed', bad.child, bad.parent
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT e.child, e.parent INTO bad FROM unnest(children, parents) AS e(child, parent)
    WHERE (SELECT p.id FROM pulse.jobs p WHERE p.id = e.parent) IS NULL
      AND (SELECT j.waiting_on > 0 FROM pulse.jobs j WHERE j.id = e.child)  -- else it was there before, and its parent may be gone since
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job % is to wait for job %, and there is no such job', bad.child, bad.parent USING ERRCODE = 'foreign_key_violation';
    END IF;
    INSERT INTO pulse.dependencies (parent_id, child_id, on_failure)
    SELECT e.parent, e.child, coalesce(e.on_failure, 'cancel')
    FROM (SELECT DISTINCT c.id FROM unnest(children) AS c(id)) AS n
    JOIN unnest(children, parents, on_failures) AS e(child, parent, on_failure) ON e.child = n.id
    WHERE (SELECT d.child_id FROM pulse.dependencies d WHERE d.child_id = n.id LIMIT 1) IS NULL
      AND (SELECT j.waiting_on > 0 FROM pulse.jobs j WHERE j.id = n.id)
    ORDER BY e.parent, e.child ON CONFLICT DO NOTHING;
    SELECT array_agg(DISTINCT e.parent) INTO ended FROM unnest(parents) AS e(parent)
    WHERE (SELECT p.completed_at FROM pulse.jobs p WHERE p.id = e.parent) IS NOT NULL;
    PERFORM pulse.settle(ended, false);
END
$$;

-- Let jobs that an operator retries count again: a child that is still held waits for them, too, and they wait for the parents of
-- theirs that have not ended. `prevented` are the ones among them that were canceled because another job had failed: where
-- one of their other parents is still failed, that cancels them again. The caller's statement before this one has locked all of them,
-- and set them to PENDING. Returns those that are still PENDING.
CREATE FUNCTION pulse.wait_again(retried uuid[], prevented uuid[]) RETURNS TABLE (job_id uuid, is_held boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    children uuid[];
    failed   uuid[];
BEGIN
    -- They are locked before their dependencies are read: what was settled before that is seen, and what is settled later finds what this makes of them.
    children := ARRAY(
        SELECT c.id FROM (
            SELECT n.id, bool_or(n.is_retried) AS is_retried FROM (
                SELECT r.id, true AS is_retried FROM unnest(retried) AS r(id)
                UNION ALL
                SELECT d.child_id, false FROM unnest(retried) AS r(id)
                CROSS JOIN LATERAL (SELECT d.child_id FROM pulse.dependencies d WHERE d.parent_id = r.id AND d.is_over) AS d
            ) AS n GROUP BY n.id ORDER BY n.id
        ) AS n
        CROSS JOIN LATERAL (
            SELECT c.id FROM pulse.jobs c
            WHERE c.id = n.id AND c.status::text = 'PENDING' AND (c.waiting_on > 0 OR n.is_retried AND c.waiting_on = 0) FOR UPDATE) AS c);
    UPDATE pulse.dependencies d SET is_over = false
    FROM unnest(children) AS n(id)
    CROSS JOIN LATERAL (SELECT e.parent_id FROM pulse.dependencies e WHERE e.child_id = n.id AND e.is_over) AS e
    CROSS JOIN LATERAL (SELECT p.id FROM pulse.jobs p WHERE p.id = e.parent_id AND p.completed_at IS NULL) AS p
    WHERE d.parent_id BETWEEN p.id AND p.id AND d.child_id BETWEEN n.id AND n.id;
    WITH again AS (
        UPDATE pulse.dependencies d SET is_over = false
        FROM unnest(prevented) AS n(id)
        CROSS JOIN LATERAL (SELECT e.parent_id FROM pulse.dependencies e WHERE e.child_id = n.id AND e.is_over) AS e
        CROSS JOIN LATERAL (
            SELECT p.id FROM pulse.jobs p WHERE p.id = e.parent_id AND p.status::text IN ('DEAD_LETTERED', 'CANCELED')) AS p
        WHERE d.parent_id BETWEEN p.id AND p.id AND d.child_id BETWEEN n.id AND n.id
        RETURNING d.parent_id
    )
    SELECT array_agg(DISTINCT a.parent_id) INTO failed FROM again a;
    UPDATE pulse.jobs c
    SET waiting_on = n.waiting_on, next_run_at = '9999-12-30 00:00+00',
        run_after = CASE WHEN c.waiting_on > 0 THEN c.run_after ELSE c.next_run_at END
    FROM (
        SELECT n.id, (SELECT count(*)::int FROM pulse.dependencies d WHERE d.child_id = n.id AND NOT d.is_over) AS waiting_on
        FROM unnest(children) AS n(id)
    ) AS n
    WHERE c.id BETWEEN n.id AND n.id AND c.waiting_on < n.waiting_on;
    PERFORM pulse.settle(failed, false);
    RETURN QUERY SELECT c.id, c.waiting_on IS NOT NULL AND c.waiting_on > 0 FROM unnest(retried) AS r(id)
    CROSS JOIN LATERAL (SELECT c.id, c.waiting_on FROM pulse.jobs c WHERE c.id = r.id AND c.status::text = 'PENDING') AS c;
END
$$;

REVOKE ALL ON FUNCTION pulse.settle(uuid[], boolean), pulse.add_dependencies(uuid[], uuid[], text[]),
    pulse.wait_again(uuid[], uuid[]) FROM PUBLIC;

-- Signals: what the world tells a job. A handler that waits for one gives its attempt back: awaited_signal of its job has the name,
-- and it is due when the wait is over. A signal makes it due now. One that comes earlier stays here until the handler asks for it; the
-- handler keeps in its checkpoint which ones it has had, so that each wait gets one, and none gets it twice.
CREATE TABLE pulse.signals (
    job_id  uuid NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id      bigint GENERATED ALWAYS AS IDENTITY,    -- the order in which a handler gets them
    name    text NOT NULL,
    key     text NOT NULL,                          -- the same name and key: the same signal, sent again
    payload jsonb,
    PRIMARY KEY (job_id, name, key)
);

-- What is wrong with a signal, in one line; NULL: nothing.
CREATE FUNCTION pulse.signal_problem(name text, payload jsonb, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN name IS NULL THEN 'name of a signal is NULL; 1 to 200 characters are allowed'
        WHEN length(name) NOT BETWEEN 1 AND 200 THEN format('name of a signal has %s characters; 1 to 200 are allowed', length(name))
        WHEN length(key) NOT BETWEEN 1 AND 200 THEN format('key of signal "%s" has %s characters; 1 to 200 are allowed', name, length(key))
        WHEN octet_length(payload::text) > 65536
            THEN format('payload of signal "%s" has %s bytes; at most 65536 are allowed', name, octet_length(payload::text))
    END
$$;

-- Send a signal to a job, inside the caller's transaction. Returns whether it is new: with a key it can be sent again, and arrives once.
-- It has its owner's rights, for roles that may submit but neither read nor change jobs. Only they may call it.
CREATE FUNCTION pulse.signal(job_id uuid, name text, payload jsonb DEFAULT NULL, key text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    problem text := pulse.signal_problem(name, payload, key);
    job     record;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM pulse.signals s WHERE s.job_id = signal.job_id AND s.name = signal.name AND s.key = signal.key) THEN
        RETURN false;
    END IF;
    SELECT j.status::text AS status, coalesce(j.signals, 0) AS signals INTO job FROM pulse.jobs j WHERE j.id = signal.job_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'signal "%": there is no job %', name, signal.job_id USING ERRCODE = 'foreign_key_violation';
    ELSIF job.status IN ('COMPLETED', 'CANCELED') THEN
        RAISE EXCEPTION 'signal "%": job % is %; one that has not ended, or is a dead letter, is allowed', name, signal.job_id, job.status
            USING ERRCODE = 'integrity_constraint_violation';
    ELSIF job.signals >= 10000 THEN
        RAISE EXCEPTION 'signal "%": job % has had % signals; at most 10000 are allowed', name, signal.job_id, job.signals
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO pulse.signals AS s (job_id, name, key, payload)
    VALUES (signal.job_id, signal.name, coalesce(signal.key, gen_random_uuid()::text), signal.payload) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- At the commit of the transaction that sent a signal: counts it, and makes the job due if it waits for it. Its row is locked no longer than
-- that takes, since a handler that runs needs its heartbeats. end_attempts compares the count with the one that the handler had seen: so a
-- signal that comes while a handler decides to wait is not missed.
CREATE FUNCTION pulse.deliver_signal() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    wakes boolean;
    sent  int;
BEGIN
    SELECT j.status::text IN ('PENDING', 'RETRYING') AND coalesce(j.awaited_signal = NEW.name, false), coalesce(j.signals, 0) INTO wakes, sent
    FROM pulse.jobs j WHERE j.id = NEW.job_id FOR UPDATE;
    IF NOT FOUND THEN
        DELETE FROM pulse.signals s WHERE s.job_id = NEW.job_id;
        RETURN NULL;
    ELSIF sent >= 10000 THEN  -- those of open transactions are counted here first
        RAISE EXCEPTION 'signal "%": job % has had % signals; at most 10000 are allowed', NEW.name, NEW.job_id, sent
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE pulse.jobs j
    SET signals = sent + 1,
        awaited_signal = CASE WHEN NOT wakes THEN j.awaited_signal END,
        next_run_at = CASE WHEN wakes AND j.run_after IS NULL THEN least(j.next_run_at, clock_timestamp()) ELSE j.next_run_at END,
        run_after = CASE WHEN wakes AND j.run_after > clock_timestamp() THEN clock_timestamp() ELSE j.run_after END
    WHERE j.id = NEW.job_id;
    IF wakes AND current_setting('pulse.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pulse.tell('pulse_work', 'released');
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER sent AFTER INSERT ON pulse.signals DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION pulse.deliver_signal();

-- Trigger functions with their owner's rights: nobody may fire them from other tables.
REVOKE ALL ON FUNCTION pulse.signal(uuid, text, jsonb, text), pulse.deliver_signal(), pulse.forget_linked(), pulse.join_parent() FROM PUBLIC;

-- Fenced effects (ctx.transaction): a handler has its effects in a transaction of its own, and the fence is the last statement
-- before its COMMIT. A handler that no longer holds the attempt gets an error, SQLSTATE PU001, after which that transaction cannot
-- commit. The functions have their owner's rights, since handlers may not write jobs. Only members of pulse_submit may call
-- them, and only the worker that runs an attempt knows job, attempt and worker.

-- Does the worker hold this attempt? With *lock* the row stays as it is until the transaction ends; heartbeats wait meanwhile, so
-- that is for the end. A transaction with one snapshot locks at its beginning, too: after a heartbeat it could not do so any more.
CREATE FUNCTION pulse.check_attempt(id uuid, attempt int, worker text, lock boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'the transaction is read-only' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    IF lock OR current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM FROM pulse.jobs j
        WHERE j.id = check_attempt.id AND j.status::text = 'RUNNING' AND j.locked_by = check_attempt.worker
          AND j.attempts = check_attempt.attempt
        FOR NO KEY UPDATE;
    ELSE
        PERFORM FROM pulse.jobs j
        WHERE j.id = check_attempt.id AND j.status::text = 'RUNNING' AND j.locked_by = check_attempt.worker
          AND j.attempts = check_attempt.attempt;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'attempt % no longer holds job %', check_attempt.attempt, check_attempt.id USING ERRCODE = 'PU001';
    END IF;
END
$$;

-- RUNNING -> COMPLETED, as a worker's report does it, which is then taken for a repeated one. A topic without retention loses the
-- job at that report, or when old jobs are deleted.
CREATE FUNCTION pulse.complete_attempt(id uuid, attempt int, worker text, result jsonb DEFAULT NULL, progress jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    most_bytes constant int := 4 * 1024 * 1024;     -- as for reports
    has_children boolean;
BEGIN
    IF octet_length(result::text) > most_bytes THEN
        RAISE EXCEPTION 'result is too large: % bytes; at most % are stored', octet_length(result::text), most_bytes
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    UPDATE pulse.jobs j
    SET status = 'COMPLETED', completed_at = clock_timestamp(), locked_by = NULL, lease_until = NULL, ran_by = complete_attempt.worker,
        result = complete_attempt.result, progress = coalesce(complete_attempt.progress, j.progress)
    WHERE j.id = complete_attempt.id AND j.status::text = 'RUNNING' AND j.locked_by = complete_attempt.worker
      AND j.attempts = complete_attempt.attempt
    RETURNING j.is_parent INTO has_children;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'attempt % no longer holds job %', complete_attempt.attempt, complete_attempt.id USING ERRCODE = 'PU001';
    END IF;
    IF has_children THEN
        PERFORM pulse.settle(ARRAY[complete_attempt.id]);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION pulse.check_attempt(uuid, int, text, boolean), pulse.complete_attempt(uuid, int, text, jsonb, jsonb) FROM PUBLIC;

-- Schedules from SQL. The scheduler computes the first occurrence when it gets the NOTIFY, or else within a second; if it cannot
-- compute a cron expression, pulse.schedules.error says why.
CREATE FUNCTION pulse.create_schedule(
    name text, cron text DEFAULT NULL, timezone text DEFAULT NULL, every_s float8 DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    args jsonb DEFAULT '{}', topic text DEFAULT NULL, priority int DEFAULT 0, max_attempts int DEFAULT NULL,
    timeout_s float8 DEFAULT NULL, starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL, jitter_s float8 DEFAULT 0,
    catch_up text DEFAULT 'latest', overlap text DEFAULT 'allow', id uuid DEFAULT NULL, unique_key text DEFAULT NULL,
    unique_until text DEFAULT NULL, on_conflict text DEFAULT NULL, group_key text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    new pulse.schedules;
BEGIN
    IF num_nonnulls(create_schedule.cron, create_schedule.every_s, create_schedule.run_at) <> 1 THEN
        RAISE EXCEPTION '% of cron, every_s and run_at are given; exactly one is allowed',
            num_nonnulls(create_schedule.cron, create_schedule.every_s, create_schedule.run_at) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    new.id := coalesce(create_schedule.id, pulse.uuid7());
    new.name := create_schedule.name; new.args := create_schedule.args; new.topic := create_schedule.topic;
    new.cron := create_schedule.cron; new.every_s := create_schedule.every_s; new.run_at := create_schedule.run_at;
    new.kind := CASE WHEN new.cron IS NOT NULL THEN 'cron' WHEN new.every_s IS NOT NULL THEN 'every' ELSE 'at' END;
    new.timezone := coalesce(create_schedule.timezone, CASE WHEN new.kind = 'cron' THEN 'UTC' END);
    new.priority := pulse.checked_priority(coalesce(create_schedule.priority, 0));
    new.max_attempts := create_schedule.max_attempts; new.timeout_s := create_schedule.timeout_s;
    new.starts_at := create_schedule.starts_at; new.ends_at := create_schedule.ends_at;
    new.jitter_s := coalesce(create_schedule.jitter_s, 0);
    new.catch_up := coalesce(create_schedule.catch_up, 'latest'); new.overlap := coalesce(create_schedule.overlap, 'allow');
    new.unique_key := create_schedule.unique_key; new.unique_until := create_schedule.unique_until;
    new.on_conflict := create_schedule.on_conflict; new.group_key := create_schedule.group_key;
    PERFORM pulse.check_schedule(new);
    INSERT INTO pulse.schedules AS s (id, name, args, topic, kind, cron, timezone, every_s, run_at, priority, max_attempts, timeout_s,
        starts_at, ends_at, jitter_s, catch_up, overlap, unique_key, unique_until, on_conflict, group_key)
    VALUES (new.id, new.name, new.args, new.topic, new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.priority,
        new.max_attempts, new.timeout_s, new.starts_at, new.ends_at, new.jitter_s, new.catch_up, new.overlap,
        new.unique_key, new.unique_until, new.on_conflict, new.group_key);
    PERFORM pulse.note('schedules.create', topic => new.topic, schedule_id => new.id, detail => jsonb_strip_nulls(jsonb_build_object(
        'name', new.name, 'cron', new.cron, 'timezone', new.timezone, 'every_s', new.every_s, 'run_at', new.run_at)));
    PERFORM pulse.tell('pulse_schedules', '');
    RETURN new.id;
END
$$;

-- Change the given options of a schedule: a value sets one, null unsets it. One of cron, every_s and run_at replaces the one
-- before. The cursor stays unless its times change. False: there is no such schedule.
CREATE FUNCTION pulse.set_schedule(id uuid, changes jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    every   constant text[] := ARRAY['name', 'cron', 'timezone', 'every_s', 'run_at', 'args', 'topic', 'priority', 'max_attempts',
                                     'timeout_s', 'starts_at', 'ends_at', 'jitter_s', 'catch_up', 'overlap', 'unique_key',
                                     'unique_until', 'on_conflict', 'group_key'];
    given   int := num_nonnulls(changes->>'cron', changes->>'every_s', changes->>'run_at');
    bad     text;
    old     pulse.schedules;
    new     pulse.schedules;
    is_else boolean;
BEGIN
    IF jsonb_typeof(changes) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the changes of a schedule must be a JSON object of options, not %', coalesce(jsonb_typeof(changes), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT key INTO bad FROM jsonb_object_keys(changes) AS key WHERE key <> ALL (every) ORDER BY key LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'unknown option "%" of a schedule; allowed are %', left(bad, 50), array_to_string(every, ', ')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF given > 1 THEN
        RAISE EXCEPTION '% of cron, every_s and run_at are given; at most one is allowed', given USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.* INTO old FROM pulse.schedules s WHERE s.id = set_schedule.id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF given = 1 THEN
        changes := CASE WHEN changes->>'cron' IS NULL THEN '{"cron": null, "every_s": null, "run_at": null, "timezone": null}'::jsonb
                        ELSE '{"every_s": null, "run_at": null}' END || changes;
    END IF;
    IF changes->'unique_key' = 'null' THEN  -- what says more about the key goes with it
        changes := '{"unique_until": null, "on_conflict": null}' || changes;
    END IF;
    PERFORM pulse.checked_priority((changes->>'priority')::int);
    new := jsonb_populate_record(old, changes);
    IF num_nonnulls(new.cron, new.every_s, new.run_at) = 0 THEN
        RAISE EXCEPTION 'none of cron, every_s and run_at is left; exactly one is allowed' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    new.kind := CASE WHEN new.cron IS NOT NULL THEN 'cron' WHEN new.every_s IS NOT NULL THEN 'every' ELSE 'at' END;
    new.timezone := coalesce(new.timezone, CASE new.kind WHEN 'cron' THEN 'UTC' END);
    new.args := coalesce(new.args, '{}');
    new.priority := coalesce(new.priority, 0);
    new.jitter_s := coalesce(new.jitter_s, 0);
    new.catch_up := coalesce(new.catch_up, 'latest');
    new.overlap := coalesce(new.overlap, 'allow');
    PERFORM pulse.check_schedule(new);
    is_else := (new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at)
        IS DISTINCT FROM (old.kind, old.cron, old.timezone, old.every_s, old.run_at, old.starts_at, old.ends_at);
    UPDATE pulse.schedules s
    SET name = new.name, args = new.args, topic = new.topic, priority = new.priority, max_attempts = new.max_attempts,
        timeout_s = new.timeout_s, kind = new.kind, cron = new.cron, timezone = new.timezone, every_s = new.every_s,
        run_at = new.run_at, starts_at = new.starts_at, ends_at = new.ends_at, jitter_s = new.jitter_s,
        catch_up = new.catch_up, overlap = new.overlap, unique_key = new.unique_key, unique_until = new.unique_until,
        on_conflict = new.on_conflict, group_key = new.group_key, revision = s.revision + 1, error = NULL,
        next_run_at = CASE WHEN is_else THEN NULL ELSE s.next_run_at END,
        following_run_at = CASE WHEN is_else THEN NULL ELSE s.following_run_at END,
        reckon = is_else OR s.reckon OR s.error IS NOT NULL OR new.jitter_s > s.jitter_s  -- of cron it may be too long
    WHERE s.id = set_schedule.id;
    PERFORM pulse.note('schedules.update', schedule_id => set_schedule.id, detail => changes - 'args');
    PERFORM pulse.tell('pulse_schedules', '');
    RETURN true;
END
$$;

-- The same with a parameter for each option; NULL leaves it as it is.
CREATE FUNCTION pulse.update_schedule(
    id uuid, name text DEFAULT NULL, cron text DEFAULT NULL, timezone text DEFAULT NULL, every_s float8 DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, args jsonb DEFAULT NULL, topic text DEFAULT NULL, priority int DEFAULT NULL,
    max_attempts int DEFAULT NULL, timeout_s float8 DEFAULT NULL, starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL,
    jitter_s float8 DEFAULT NULL, catch_up text DEFAULT NULL, overlap text DEFAULT NULL, unique_key text DEFAULT NULL,
    unique_until text DEFAULT NULL, on_conflict text DEFAULT NULL, group_key text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changes jsonb := jsonb_build_object('name', name, 'cron', cron, 'timezone', timezone, 'every_s', every_s, 'run_at', run_at,
        'args', args, 'topic', topic, 'priority', priority, 'max_attempts', max_attempts, 'timeout_s', timeout_s,
        'starts_at', starts_at, 'ends_at', ends_at, 'jitter_s', jitter_s, 'catch_up', catch_up, 'overlap', overlap,
        'unique_key', unique_key, 'unique_until', unique_until, 'on_conflict', on_conflict, 'group_key', group_key);
BEGIN
    RETURN pulse.set_schedule(id, (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(changes) WHERE value <> 'null'));
END
$$;

-- A priority as smallint. pulse.check_schedule cannot check it: it gets the row, whose column is smallint already.
CREATE FUNCTION pulse.checked_priority(priority int) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'priority is %; -100 to 100 is allowed', priority USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN priority;
END
$$;

-- A clear message for values that a CHECK would refuse less clearly, or not at all.
CREATE FUNCTION pulse.check_schedule(s pulse.schedules) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    IF s.kind = 'cron' THEN
        BEGIN
            PERFORM now() AT TIME ZONE s.timezone;
        EXCEPTION WHEN invalid_parameter_value THEN
            wrong := format('timezone is %L; an IANA name such as Europe/Berlin is allowed', left(s.timezone, 100));
        END;
    END IF;
    wrong := coalesce(wrong, CASE
        WHEN s.timezone IS NOT NULL AND s.cron IS NULL THEN format('timezone is %L; it is allowed with cron only', left(s.timezone, 100))
        WHEN s.cron !~ '^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$'
            THEN format('cron is %L; five fields are allowed (minute hour day month weekday), or six with seconds first', left(s.cron, 100))
        WHEN s.every_s < 0.1 OR s.every_s > 1e9 THEN format('every_s is %s; 0.1 to 1e9 s is allowed', s.every_s)
        WHEN s.jitter_s < 0 OR s.jitter_s > 86400 THEN format('jitter_s is %s; 0 to 86400 s is allowed', s.jitter_s)
        WHEN s.jitter_s > s.every_s THEN format('jitter_s is %s; at most the interval, %s s, is allowed', s.jitter_s, s.every_s)
        WHEN s.run_at IS NOT NULL AND num_nonnulls(s.starts_at, s.ends_at) > 0
            THEN 'starts_at or ends_at is given; they are allowed with cron and every_s only'
        WHEN s.ends_at < s.starts_at
            THEN format('ends_at is %s, before starts_at, %s; a time from starts_at on is allowed', s.ends_at, s.starts_at)
        WHEN s.catch_up NOT IN ('skip', 'latest', 'all') THEN format('catch_up is %L; allowed are skip, latest, all', left(s.catch_up, 100))
        WHEN s.overlap NOT IN ('allow', 'skip', 'queue', 'cancel')
            THEN format('overlap is %L; allowed are allow, skip, queue, cancel', left(s.overlap, 100))
        WHEN s.unique_key IS NOT NULL AND s.overlap <> 'allow'
            THEN format('overlap is %L; with unique_key only allow is: on_conflict says what happens', s.overlap)
        WHEN s.on_conflict = 'error' THEN 'on_conflict is ''error''; allowed for a schedule are skip, replace'
        WHEN pulse.unique_problem(s.unique_key, s.unique_until, s.on_conflict) IS NOT NULL
            THEN pulse.unique_problem(s.unique_key, s.unique_until, s.on_conflict)
        WHEN pulse.group_problem(s.group_key) IS NOT NULL THEN pulse.group_problem(s.group_key)
        WHEN s.name IS NULL OR length(s.name) NOT BETWEEN 1 AND 200
            THEN format('name is %L; 1 to 200 characters are allowed', left(s.name, 100))
        WHEN length(s.topic) NOT BETWEEN 1 AND 200 THEN format('topic is %L; 1 to 200 characters are allowed', left(s.topic, 100))
        WHEN jsonb_typeof(s.args) IS DISTINCT FROM 'object'
            THEN format('args must be a JSON object, not %s', coalesce(jsonb_typeof(s.args), 'NULL'))
        WHEN s.max_attempts NOT BETWEEN 1 AND 10000 THEN format('max_attempts is %s; 1 to 10000 is allowed', s.max_attempts)
        WHEN NOT (s.timeout_s > 0 AND s.timeout_s <= 1e9)
            THEN format('timeout_s is %s; seconds above 0, at most 1e9, are allowed', s.timeout_s)
        ELSE (SELECT format('%s is %s; a time of the years 1 to 9999 is allowed', t.what, t.at)
              FROM (VALUES ('run_at', s.run_at), ('starts_at', s.starts_at), ('ends_at', s.ends_at)) AS t(what, at)
              WHERE NOT (t.at >= '0001-01-02 00:00+00' AND t.at < '9999-12-31 00:00+00') LIMIT 1)
        END);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- Fire nothing until pulse.resume_schedule; catch_up decides about missed occurrences. False: there is no such schedule.
CREATE FUNCTION pulse.pause_schedule(id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pulse.schedules s SET paused = true WHERE s.id = pause_schedule.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pulse.note('schedules.pause', schedule_id => pause_schedule.id);
    RETURN true;
END
$$;

CREATE FUNCTION pulse.resume_schedule(id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pulse.schedules s SET paused = false WHERE s.id = resume_schedule.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pulse.note('schedules.resume', schedule_id => resume_schedule.id);
    PERFORM pulse.tell('pulse_schedules', '');
    RETURN true;
END
$$;

-- Submit a job of a schedule now, beside its occurrences, paused or not. Returns its id, or the id of the job that has its unique
-- key; NULL: there is no such schedule.
CREATE FUNCTION pulse.trigger_schedule(id uuid, job_id uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    most_rounds constant int := 20;                 -- as in pulse.insert_unique
    made uuid := coalesce(trigger_schedule.job_id, pulse.uuid7());
    held uuid;
BEGIN
    IF NOT EXISTS (SELECT FROM pulse.schedules s WHERE s.id = trigger_schedule.id) THEN
        RETURN NULL;
    END IF;
    FOR round IN 1..most_rounds LOOP
        INSERT INTO pulse.jobs (id, name, args, topic, priority, next_run_at, max_attempts, timeout_s, schedule_id, group_key, unique_key,
            unique_until, is_parent)
        SELECT made, m.name, m.args, o.topic, m.priority, clock_timestamp(), o.max_attempts, o.timeout_s, m.id, m.group_key, m.unique_key,
               CASE WHEN m.unique_key IS NOT NULL THEN coalesce(m.unique_until, 'end') END, o.is_parent
        FROM pulse.schedules m
        CROSS JOIN LATERAL pulse.resolved_options(m.name, m.topic, m.max_attempts, m.timeout_s) AS o
        WHERE m.id = trigger_schedule.id
        ON CONFLICT DO NOTHING;
        EXIT WHEN EXISTS (SELECT FROM pulse.jobs j WHERE j.id = made AND j.schedule_id = trigger_schedule.id);
        IF EXISTS (SELECT FROM pulse.jobs j WHERE j.id = made) THEN
            RAISE EXCEPTION 'job % exists already, and is not of this schedule', made USING ERRCODE = 'unique_violation';
        END IF;
        SELECT h.job_id INTO held
        FROM pulse.schedules s CROSS JOIN LATERAL pulse.unique_holder(made, s.name, s.topic, s.args, clock_timestamp(), NULL, s.unique_key,
            s.on_conflict) AS h
        WHERE s.id = trigger_schedule.id;
        IF FOUND THEN
            made := held;
            EXIT;
        END IF;
        IF round = most_rounds THEN
            RAISE EXCEPTION 'job % is not stored, without an error: a trigger or a rule that is not pulse''s drops it', made
                USING ERRCODE = 'no_data_found';
        END IF;
    END LOOP;
    PERFORM pulse.note('schedules.trigger', schedule_id => trigger_schedule.id, job_id => made);
    PERFORM pulse.notify_work();
    RETURN made;
END
$$;

-- Delete a schedule. Its jobs stay, except that jobs which are held back until another one ends are canceled. False: there is none.
CREATE FUNCTION pulse.delete_schedule(id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended uuid[];
BEGIN
    DELETE FROM pulse.schedules s WHERE s.id = delete_schedule.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH canceled AS (
        UPDATE pulse.jobs j SET status = 'CANCELED', completed_at = clock_timestamp()
        WHERE j.schedule_id = delete_schedule.id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00'
        RETURNING j.id, j.is_parent
    )
    SELECT array_agg(c.id) INTO ended FROM canceled c WHERE c.is_parent;
    PERFORM pulse.settle(ended);
    PERFORM pulse.note('schedules.delete', schedule_id => delete_schedule.id);
    RETURN true;
END
$$;
