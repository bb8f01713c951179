"""
Secrets and permissions: TLS, passwords, grants, the codec, redaction.

- codec: `pulse.Codec`: encrypts args, results and checkpoints, so that only the app can read them
- conceal: removes the contents of jobs from answers to accounts that may only see counts
- credentials: the users of PULSE_AUTH_USERS: passwords and roles
- grants: which accounts of this machine may do what: `allow_users`, `allow_groups`
- hide_password: removes a password from the command line of this process
- log_throttle: limits the log of refusals to one line a minute
- password_login: checks passwords, and makes wrong guesses slower each time
- redaction: hides single values of args, results and progress: the setting `redact`
- schema_name: which names a schema may have, and how SQL writes them: quoted
- tls: TLS contexts of server and client
"""
