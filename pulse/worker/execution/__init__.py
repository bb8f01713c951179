"""One attempt: the handler, its deadlines, its stack."""
