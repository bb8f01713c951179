"""Connections: the listener, the handshake, one session per peer."""
