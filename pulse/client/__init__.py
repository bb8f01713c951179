"""
Clients, asynchronous and blocking: they submit, read and change jobs over the socket.

- async_client: `pulse.AsyncClient` and `pulse.connect`
- async_transport: sends requests and receives answers with anyio
- client: `pulse.Client`: the same methods, blocking
- discovery: finds the server: socket, address, account and password
- exchange: the protocol between client and server, without IO
- explanation: `pulse.Why`: the answer to why a job does not run
- login: the file in which `pulse ctl login` keeps the account
- operator_requests: builds requests to delete and move jobs, and to read the audit
- records: what clients get back: pages of jobs and schedules, changes, stacks
- requests: builds requests about jobs, and checks their options
- schedule_requests: builds requests about schedules
- sealing: encodes and decodes args and results with the app's codec
- stats: `pulse.Stats`: counts, rates and durations by topic
"""
