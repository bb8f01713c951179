"""
Turns values into charts and text.

- charts: draws line charts as SVG
- formatting: formats numbers, times and ids for a page
- series: the part of the answer to `stats` that pages show
"""
