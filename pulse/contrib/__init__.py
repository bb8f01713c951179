"""
Integrations with other packages, each imported only when asked for.

- django: jobs of a Django project: settings, transactions, a command for its worker, checks, a link in the admin
- sentry: reports failed attempts to Sentry, and times each attempt
"""
