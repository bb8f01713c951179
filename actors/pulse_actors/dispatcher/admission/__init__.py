"""
Who may connect and how much they may ask.

- connection_limits: limits connections per source
- list_queue: answers long requests one at a time, fairly
- memory_budget: limits the bytes that a peer makes the dispatcher keep
- per_peer: the limits that all connections of one peer share
- refusal_log: logs and audits refused requests, once a minute per account and kind
- request_limits: reads a peer that sends nonsense more slowly
- tls_limits: does TLS handshakes one after the other, fairly, and so many a second
"""
