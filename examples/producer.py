"""
Submits jobs and waits for one: blocking code first, then the same on asyncio (or trio).

    python -m examples.producer
"""

from __future__ import annotations

import anyio

import pulse
from examples.app import checksum


def blocking() -> None:
    """No event loop at all."""
    with pulse.Client() as client:
        job_id = client.submit(checksum, {"path": __file__})  # a handler, or its name
        print("checksum:", client.wait(job_id, timeout_s=60).result)


async def with_event_loop() -> None:
    """Many at once, in one commit; then wait for the last."""
    async with pulse.connect() as client:
        ids = await client.submit_many(
            [{"name": "count-down", "args": {"seconds": number}, "priority": number} for number in (1, 2, 3)]
        )
        job = await client.wait(ids[-1], timeout_s=60)
        print("count-down:", job.status, job.result)


if __name__ == "__main__":
    blocking()
    anyio.run(with_event_loop)
