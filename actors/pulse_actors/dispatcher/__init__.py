"""
The dispatcher: takes connections, claims and assigns jobs, writes reports, answers requests.

- admission: who may connect and how much they may ask
- claims: from the database to workers
- context: the services that requests use, and the operator
- diagnosis: why a job does not run
- epochs: notices that the database went back
- liveness: dead, hung and silent workers
- main: builds the dispatcher and starts its loops
- monitoring: counters, findings, statistics
- net: the listener, connections and sessions
- requests: what clients ask, and how each request is answered
- workers: the connected workers and the jobs that they hold
- writes: group commit of submits, reports and heartbeats
"""
