"""Connections to PostgreSQL: the pool, its fair queue, sessions, poolers."""
