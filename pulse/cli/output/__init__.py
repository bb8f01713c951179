"""
How answers are printed.

- documents: turns answers into JSON documents: ids as text, times as ISO 8601
- render: tables and lines, with rich on a terminal, as plain text or JSON elsewhere
- styles: the colour of each status
"""
