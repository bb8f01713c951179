"""Who may connect and how much they may ask: limits on connections, requests, TLS, memory."""
