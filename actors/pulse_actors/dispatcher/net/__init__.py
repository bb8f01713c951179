"""
The listener, connections and sessions.

- connection: the byte stream of one peer, as frames
- handshake: reads what a worker says about itself and its jobs in its hello
- listener: accepts connections, on the Unix socket and over TLS
- peer: the identity of a peer: an account of this machine, or a user who logged in
- session: one connection, from hello to end: which frames it may send, and where each goes
"""
