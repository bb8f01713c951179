"""
How answers are printed.

- documents: turns answers into JSON documents: ids as text, times as ISO 8601
- progress: a line on the terminal that shows how far a command is
- render: tables and lines, with rich on a terminal, as plain text or JSON elsewhere
"""
