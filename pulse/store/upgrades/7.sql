-- Version 6 to 7. What is added here stands in schema.sql too, which is the whole of the newest version; a test holds them
-- together.

-- Attempts that their handler did not end itself: few, unless something is wrong. Whoever looks what is wrong reads the newest.
CREATE INDEX idx_attempts_lost ON pulse.attempts (ended_at) WHERE outcome IN ('crashed', 'timeout', 'stalled', 'lease_expired');

INSERT INTO pulse.schema_version (version) VALUES (7);
