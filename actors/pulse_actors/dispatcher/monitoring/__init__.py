"""Counters, incidents, statistics."""
