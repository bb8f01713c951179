"""
The Prometheus endpoint: a process of its own, which asks the server as every client does.

- catalogue: every metric, with its labels and where its value comes from
- collector: turns a snapshot into metric families of `prometheus_client`
- run: starts and stops the endpoint
- server: answers scrapes over HTTP
- snapshot: the answers of the dispatcher and the supervisor at one moment
"""
