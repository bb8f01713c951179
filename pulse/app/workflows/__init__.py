"""
For handlers that are part of a workflow, or are one.

- link: what connects the context of a handler to its worker
- parents: `ctx.parents()`: the jobs that the job of a handler has waited for
- receipt: whether the server has what a handler wants to keep
- steps: `ctx.step`, `ctx.sleep` and `ctx.wait_for`: parts of a handler that a later attempt leaves out
"""
