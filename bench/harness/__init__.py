"""
Runs the public harness, postgresql-job-queue-benchmarking, natively.

The harness starts PostgreSQL and its adapters by docker. Here a program of that name does what it asks for: PostgreSQL
is the embedded one with the harness's configuration, and adapters run as processes. The clone of the harness is not
changed, and pulse's own adapter is registered when it starts.

- docker: the program ``docker``: asks the bench, and becomes what it says
- place: PostgreSQL, and the environments of the harness and its adapters
- register: starts the harness, which knows pulse then
- stand_in: answers the commands of ``docker``
"""
