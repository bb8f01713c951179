"""Sweeps, jobs that are set aside, epochs and timelines of the database."""
