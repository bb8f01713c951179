"""Commands that change the running system: dispatch, topics, schedules."""
