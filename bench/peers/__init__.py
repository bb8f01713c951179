"""
`python -m bench.peers`: other job queues measured side by side with pulse, on one PostgreSQL, in one run.

Fair play: every peer runs in an environment of its own, of a pinned version, with the fast settings of its own
documentation; the table and `docs/performance-peers.md` name them. Each is given the same work, a handler that does
nothing with args of about 200 bytes of JSON, a database of its own on the same server, one worker process (celery: one
pool of two) and one producer process. Peers take turns within a round, each round begins with another one, and a
CHECKPOINT comes before each turn; what is shown is the median of the rounds.

What a figure counts is what the queue leaves behind: rows that it says are finished, where it keeps them; else the
calls of its handler, which each worker process counts in shared memory, and a drain ends when no row is left, too. What
differs between the peers, and what a figure therefore does not say, is listed per peer: whether the finish is fenced (a
worker that lost its job cannot finish it), and whether a finished job is kept.
"""

from __future__ import annotations
