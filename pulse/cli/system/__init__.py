"""Commands that look at the running system: status, workers, logs, audit, top."""
