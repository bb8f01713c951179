"""The connection of a handler process to the dispatcher, and the jobs that it holds."""
