"""Group commit: submits, reports and heartbeats, many in one statement."""
