INSERT INTO pulse.schema_version (version) VALUES (3);
