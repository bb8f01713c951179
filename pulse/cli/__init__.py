"""The command line: a module per noun; it shows what the client returns, and knows no SQL."""
