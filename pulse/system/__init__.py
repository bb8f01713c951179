"""Linux: processes, directories, listening sockets, peer credentials, log output."""
