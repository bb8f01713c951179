"""
pulse behind the JSONL protocol of the public harness postgresql-job-queue-benchmarking: `python -m bench.adapter`.

The contract is that harness's CONTRIBUTING_ADAPTERS.md: settings come in the environment, telemetry goes to stdout and
logs to stderr, SIGTERM ends it. See README.md for how to register it there.
"""

from __future__ import annotations
