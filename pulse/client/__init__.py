"""Clients: submit, look at and change jobs over the socket; async and blocking."""
