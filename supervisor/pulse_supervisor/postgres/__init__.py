"""
The embedded PostgreSQL.

- accounts: the system user that it runs under, when pulse runs as root
- binaries: finds the programs of PostgreSQL
- child: the server as a child of the supervisor
- directories: its directories, which pulse alone made
- embedded: prepares a data directory and the server's configuration
- postmaster: finds and ends the processes of a data directory
"""
