"""
Turns values into charts and text.

- charts: draws line charts as SVG
- formatting: formats numbers, times and ids for a page
"""
