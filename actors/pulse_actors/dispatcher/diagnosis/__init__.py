"""
Why a job does not run (`jobs why`).

- facts: what the dispatcher knows about a job: its holder, and who could take it
- reasons: a reason, and words that reasons share
- why: why a job does not start
- why_limits: how limits, groups and sequences keep a job waiting
- why_running: why a running job does not end
"""
