"""An app with every hook; each writes a line to the file that ``HOOK_LINES`` names."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel

import pulse

app = pulse.App()
LINES: Final = Path(os.environ["HOOK_LINES"])
BROKEN: Final = LINES.with_name("broken")  # while it exists, the database is away
HANGS: Final = LINES.with_name("hangs")  # while it exists, the end of the lifespan is

BLOCKS: Final = LINES.with_name("blocks")  # while it exists, a plain hook blocks the loop at the end

GONE: Final = LINES.with_name("gone")  # once it exists, the database is gone


def note(text: str) -> None:
    with LINES.open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


class Database:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.beats = 0


class Mailer:
    pass


@app.handler("ask")
async def ask(question: str, database: Database = pulse.provided()) -> dict[str, object]:
    with anyio.fail_after(10):
        while not database.beats:  # noqa: ASYNC110 - its task group lives
            await anyio.sleep(0.001)
    same = database.thread == threading.get_ident()
    return {"question": question, "own": database.pid == os.getpid(), "in_loop": same}


@app.handler("ask-plain")
def ask_plain(database: Database) -> dict[str, object]:
    return {"own": database.pid == os.getpid(), "name": pulse.current().name}


app.handler("ask-apart", isolate=True)(ask)
app.handler("ask-plain-apart", isolate=True)(ask_plain)


@app.handler("block")
def block() -> None:
    GONE.touch()
    while True:
        time.sleep(0.01)


@app.handler("nothing")
async def nothing() -> None:
    note("nothing")


@app.handler("fail-apart", isolate=True)
def fail_apart() -> None:
    raise LookupError("no such thing")


@app.lifespan
async def database() -> AsyncIterator[Database]:
    if BROKEN.exists():
        raise ConnectionError("the database is away")
    found = Database()

    async def beat() -> None:
        while True:
            found.beats += 1
            await anyio.sleep(0.01)
            if found.beats > 1 and GONE.exists():
                raise ConnectionError("the database is gone")

    note("open")
    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        yield found
        if HANGS.exists():
            note("hangs")
            await anyio.sleep_forever()
        group.cancel_scope.cancel()
    note("close")


@app.lifespan
async def mailer() -> AsyncIterator[Mailer]:
    note("open mailer")
    yield Mailer()
    note("close mailer")


@app.on_startup
def start() -> None:
    note("start")
    app.handler("added at the start", topic="added")(ask_plain)


@app.on_startup
async def start_async() -> None:
    await anyio.lowlevel.checkpoint()
    note("start async")


@app.on_shutdown
async def stop() -> None:
    note("stop")
    raise LookupError("a hook that fails at the end")


@app.on_shutdown
def stop_plain() -> None:
    note("stop plain")
    while BLOCKS.exists():
        time.sleep(0.01)


@app.middleware
async def around(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
    note(f"before {ctx.name}")
    try:
        return await call_next()
    finally:
        note(f"after {ctx.name}")


@app.on_failure
def failed(ctx: pulse.Context, error: BaseException) -> None:
    note(f"failed {ctx.name} {error!r}")
