"""
Clients, asynchronous and blocking: they submit, read and change jobs over the socket.

- async_client: `pulse.AsyncClient` and `pulse.connect`
- async_transport: sends requests and receives answers with anyio
- batch: `pulse.Batch`: jobs that are submitted together, and may wait for each other
- client: `pulse.Client`: the same methods, blocking
- control_requests: builds requests about pauses, topics, workers, counts and the audit
- discovery: finds the server: socket, address, account and password
- login: the file in which `pulse ctl login` keeps the account
- records: what clients get back: pages of jobs and schedules, changes, stacks
- requests: builds requests about jobs, and checks their options
- schedule_requests: builds requests about schedules
- sealing: encodes and decodes args and results with the app's codec
- transport: frames over a blocking socket
"""
