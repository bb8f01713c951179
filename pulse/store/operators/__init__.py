"""What operators and clients change: jobs, schedules, policies, the gate; with its audit."""
