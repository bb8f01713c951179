"""Lists, counts and single jobs, read page by page."""
