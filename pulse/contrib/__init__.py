"""
Other libraries, each with an extra of its own.

- sentry: reports failed attempts to Sentry, and times each attempt
"""
