"""
From the database to workers.

- assign_frames: builds the frames that assign jobs to a worker
- cross_host: tells other hosts about work that no worker here can take
- cursors: where each claim continues, by topic and priority
- doubts: jobs that a worker may hold without having received them
- handout: claims jobs in the database, and hands them to workers
- loop: the claim loop: decides when to claim, and for which workers
- placement: decides which worker runs each claimed job
- quarantine: topics that cannot be claimed for a while
- refused_jobs: finds single jobs that the database refuses to hand out
- work_signal: where there may be work: cursors, due times, and the event that wakes the claim loop
"""
