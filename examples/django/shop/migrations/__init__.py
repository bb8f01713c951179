"""The schema of the shop."""
