"""
Claims jobs from the database and hands them to workers.

- cross_host: tells other hosts about work that no worker here can take
- cursors: where each claim continues, by topic and priority
- doubts: jobs that a worker may hold without having received them
- group_turns: which levels of groups, and of topics with a limit, the next claim names; pure
- handout: claims jobs for workers with free capacity, and assigns them
- loop: the claim loop: when and where to claim
- parts: the parts of claiming, put together
- placement: decides which worker runs each claimed job; pure
- quarantine: topics that cannot be claimed for a while
- refused_jobs: finds single jobs that the database refuses to hand out
- work_signal: where jobs may be due (cursors, due times), and the event that wakes the claim loop
"""
