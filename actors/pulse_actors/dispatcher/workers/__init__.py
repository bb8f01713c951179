"""The connected workers and the jobs that they hold."""
