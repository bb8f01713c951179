"""
What the command line and the dashboard share.

- demo: the demonstration: a worker is killed, and its job is recovered
- doctor: the checks of `pulse doctor`
- metrics: the Prometheus endpoint
"""
