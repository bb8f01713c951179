"""The demonstration: a worker is killed in the middle of a job, and the job is recovered, on the real system."""
