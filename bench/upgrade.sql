-- The upgrade of a release that was made up, to measure and to test with: a column that is filled, a rule for it, an index.

-- step: add-region
-- What:  the region that a job belongs to; NULL: not known yet
-- Kind:  brief
-- Table: pulse.jobs
-- Lock:  ACCESS EXCLUSIVE
ALTER TABLE pulse.jobs ADD COLUMN IF NOT EXISTS region text;

-- step: default-region
-- What:  new jobs have one
-- Kind:  brief
-- Table: pulse.jobs
-- Lock:  ACCESS EXCLUSIVE
ALTER TABLE pulse.jobs ALTER COLUMN region SET DEFAULT 'here';

-- step: fill-region
-- What:  all others get one
-- Kind:  batches
-- Table: pulse.jobs
-- Lock:  ROW EXCLUSIVE
-- Key:   id
WITH part AS MATERIALIZED (
    SELECT j.id FROM pulse.jobs j
    WHERE j.id > coalesce($1::text, '00000000-0000-0000-0000-000000000000')::uuid AND j.id <= $3::text::uuid
    ORDER BY j.id LIMIT $2
    FOR NO KEY UPDATE
), filled AS (
    UPDATE pulse.jobs j SET region = 'here' FROM part WHERE j.id = part.id AND j.region IS NULL
)
SELECT max(part.id::text) AS reached, count(*) AS rows FROM part;

-- step: rule-region
-- What:  a rule for new rows; those that are there are looked at by the next step
-- Kind:  brief
-- Table: pulse.jobs
-- Lock:  ACCESS EXCLUSIVE
ALTER TABLE pulse.jobs DROP CONSTRAINT IF EXISTS jobs_region, ADD CONSTRAINT jobs_region CHECK (region IS NOT NULL) NOT VALID;

-- step: validate-region
-- What:  the rule holds for all rows
-- Kind:  long
-- Table: pulse.jobs
-- Lock:  SHARE UPDATE EXCLUSIVE
ALTER TABLE pulse.jobs VALIDATE CONSTRAINT jobs_region;

-- step: index-region
-- What:  jobs of a region are found
-- Kind:  concurrent
-- Table: pulse.jobs
-- Lock:  SHARE UPDATE EXCLUSIVE
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_region ON pulse.jobs (region, id);
