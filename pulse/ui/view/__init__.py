"""
Turns values into charts and text.

- advice: turns commands in advice into links
- charts: draws line charts as SVG
- formatting: formats numbers, times and ids for a page
- job_line: tells of a job in a row: since when, how far, by which worker
"""
