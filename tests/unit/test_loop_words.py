"""What the event loop of an actor says of itself: one thing is nothing to tell, all else is told."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulse_actors.runtime.actor import hear_loop

pytestmark = pytest.mark.anyio


async def test_a_reader_that_is_told_twice_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    """A socket that becomes readable while its reader gives up leaves no traceback in the log; another error does."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(hear_loop)
    try:
        waiting: asyncio.Future[None] = loop.create_future()
        waiting.cancel()
        with caplog.at_level(logging.DEBUG, logger="asyncio"):
            loop.call_soon(waiting.set_result, None)
            await asyncio.sleep(0.01)
            assert not caplog.records
            loop.call_soon(divmod, 1, 0)
            await asyncio.sleep(0.01)
    finally:
        loop.set_exception_handler(before)
    (record,) = caplog.records
    assert "divmod" in record.message
