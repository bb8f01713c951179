"""
Commands for the administrator.

- check: `pulse check`: tests the invariants of the database
- completion: `pulse completion`: prints the completion script of a shell
- demo: `pulse demo`: shows how a killed worker's job is recovered
- doctor: `pulse doctor`: examines installation, system, database and queue, and says what to do
- login: `pulse ctl login` and `logout`: keep the address and account of a server in a private file
- manpage: writes the man page from the commands
- metrics: `pulse metrics`: runs the Prometheus endpoint
- migrate: `pulse migrate`: installs or upgrades the schema, and makes the database roles
- passwd: `pulse passwd`: prints a user with a bcrypt hash, for PULSE_AUTH_USERS
- plan: what `pulse migrate --plan` shows
- ui: `pulse ui`: runs the dashboard
"""
