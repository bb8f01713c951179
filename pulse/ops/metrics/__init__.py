"""The Prometheus endpoint: a process of its own, which asks as every client does."""
