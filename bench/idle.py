"""Workers that are connected and never get a job, many in one process: `python -m bench.idle SOCKET NUMBER`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Final

from pulse.client.async_transport import HELLO_TIMEOUT_S
from pulse.protocol import FrameReader, encode

LIFE_S: Final = 300.0  # it ends then, whatever happens to those that started it
RECEIVE_BYTES: Final = 64 * 1024
TOPIC: Final = "idle"  # no job is there
HEARTBEAT_S: Final = 10.0  # the default


async def worker(socket: str, number: int, together: asyncio.Event, welcomed: asyncio.Semaphore) -> None:
    """One worker: says hello, and then as much as a real one that holds nothing."""
    reader, writer = await asyncio.open_unix_connection(socket)
    hello = {"protocol": 1, "role": "worker", "worker": f"idle-{number}", "topics": [TOPIC], "names": ["noop"]}
    writer.write(encode("hello", 0, {**hello, "capacity": 10}))
    frames = FrameReader()
    while not frames.feed(received := await reader.read(RECEIVE_BYTES)):
        if not received:  # refused
            return
    welcomed.release()
    await together.wait()
    await asyncio.sleep(HEARTBEAT_S * (number % 100) / 100)  # as if they had come at different times
    beats = asyncio.create_task(beat(writer))
    while await reader.read(RECEIVE_BYTES):
        pass
    beats.cancel()


async def beat(writer: asyncio.StreamWriter) -> None:
    """Heartbeats of a worker that holds nothing."""
    number = 0
    while True:
        number += 1
        writer.write(encode("heartbeat", number, {"jobs": []}))
        await writer.drain()
        await asyncio.sleep(HEARTBEAT_S)


async def run(options: argparse.Namespace) -> None:
    """Connect one after the other, say so, and stay."""
    together, welcomed = asyncio.Event(), asyncio.Semaphore(0)
    tasks: list[asyncio.Task[None]] = []
    for number in range(options.number):
        tasks.append(asyncio.create_task(worker(options.socket, number, together, welcomed)))
        welcome = asyncio.create_task(welcomed.acquire())
        await asyncio.wait([welcome, tasks[-1]], timeout=HELLO_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not welcome.done():
            raise ConnectionError(f"worker {number} was refused, or not heard")
    together.set()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if tasks:
        await asyncio.wait(tasks, timeout=LIFE_S, return_when=asyncio.FIRST_COMPLETED)


def main() -> None:
    """Be so many workers."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("number", type=int)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
