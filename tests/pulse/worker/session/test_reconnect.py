"""How a worker tells that it waits for a server: a restart is nothing to warn of."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from pulse.worker.session import reconnect
from pulse.worker.session.reconnect import Dialer


class Lines:
    """A log that says when it has a warning."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, object]] = []
        self.warned = anyio.Event()

    def info(self, event: str, /, **facts: object) -> None:
        self.lines.append(("info", event, facts["cause"]))

    def warning(self, event: str, /, **facts: object) -> None:
        self.lines.append(("warning", event, facts["cause"]))
        self.warned.set()


async def test_a_long_wait_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first, and when the cause changes, a line; once it lasts, one warning for each cause."""
    monkeypatch.setattr(reconnect, "PATIENCE_S", 0.2)
    monkeypatch.setattr(reconnect, "LAST_PAUSE_S", 0.01)
    log = Lines()
    dialer = Dialer(str(tmp_path / "pulse.sock"), dict, log)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(dialer.dial)
            await log.warned.wait()
            log.warned = anyio.Event()
            (tmp_path / "pulse.sock").mkdir()  # another cause
            await log.warned.wait()
            group.cancel_scope.cancel()
    assert [(level, event) for level, event, _ in log.lines] == [
        ("info", "waiting_for_server"),
        ("warning", "waiting_for_server"),
        ("warning", "waiting_for_server"),
    ]
    assert log.lines[0][2] == log.lines[1][2] != log.lines[2][2]
