"""
Turns values into charts and text.

- charts: draws line charts as SVG
- command_link: turns commands in advice into links
- formatting: formats numbers, times and ids for a page
- graph: draws jobs that wait for each other as SVG
- job_line: tells of a job in a row: since when, how far, by which worker
"""
