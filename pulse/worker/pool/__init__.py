"""The pool parent: starts handler processes, restarts them, sends heartbeats for them."""
