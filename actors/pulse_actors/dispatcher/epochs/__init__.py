"""Notices that the database went back, and begins a new epoch."""
