"""
Sockets: addresses, listeners, the processes behind them, and their bytes.

- addresses: parses TCP addresses: host:port
- listeners: opens listening sockets, and never replaces a live one
- peer_credentials: reads the process and user behind a Unix socket
- unix_stream: reads and writes a Unix socket with few system calls
"""
