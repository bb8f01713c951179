"""The supervisor of pulse: starts the actors and pools, watches them, restarts them, stops them."""
