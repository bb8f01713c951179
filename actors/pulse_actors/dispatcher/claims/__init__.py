"""
From the database to workers.

- assign_frames: builds the frames that assign jobs to a worker
- cross_host: tells other hosts about work that no worker here can take
- cursors: where each claim continues, by topic and priority
- doubts: jobs that a worker may hold without having received them
- due_times: remembers when each topic and priority gets due jobs
- loop: the claim loop: claims jobs for free workers, and assigns them
- quarantine: topics that cannot be claimed for a while
- refused_jobs: finds single jobs that the database refuses to hand out
"""
