"""
Lists, counts and single jobs.

- counts: how many jobs wait in each topic, exact or sampled
- damaged_jobs: reads what is readable of a job with corrupt values
- endings: finds out which ends of attempts were written before
- error_groups: groups dead letters by topic, handler and error
- filter_counts: counts the jobs that match a filter, by state
- jobs: reads jobs, pages and counts
- limits: limits and groups as people see them
- list_position: the position of a job in a list, and how several walks merge into one list
- listing: finds pages of jobs within a bounded time
- page_size: cuts a page to what fits into a frame
- prefixes: finds jobs and schedules by the first digits of their ids, or by key
"""
