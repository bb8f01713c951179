"""Installing and examining the database: schema, roles, invariant checks, doctor."""
