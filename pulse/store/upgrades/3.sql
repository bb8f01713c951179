-- Version 2 to 3.

INSERT INTO pulse.schema_version (version) VALUES (3);
