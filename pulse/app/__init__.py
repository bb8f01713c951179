"""
For authors of handlers: the app, its handlers, their context, and how an attempt may end.

- app: `pulse.App`: the handlers that a worker serves, and the schedules that the app declares
- call: `pulse.call`: a call of a handler, checked, to be submitted as a job
- context: `pulse.Context`: what a handler knows about its job and can do while it runs
- handler: `pulse.Handler`: a function, the name that jobs call it by, and its options
- hooks: what an app calls around its handlers
- outcome: turns what a handler returned or raised into a result for the server
- parameters: checks the args of a job against the handler's parameters, and converts them by their annotations
- retry_on: decides from the handler's `retry_on` whether an exception is retried, and when
- schedule: schedules that an app declares in code
- tracing: OpenTelemetry spans from the submit of a job to each of its attempts
- transactions: `ctx.transaction`: transactions of handlers that commit only while the attempt holds its job
- workflows: `ctx.parents`, `ctx.step` and `ctx.sleep`, for handlers that are part of a workflow, or are one
"""
