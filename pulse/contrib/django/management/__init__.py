"""
Where Django looks for commands.

- commands: one module per command
"""
