"""The dashboard: pages for operators, served by a process of its own that asks over the socket as every client does."""
