"""The scheduler: fires due schedules."""
