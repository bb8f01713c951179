"""Threads that do something to the system again and again, and rest on request."""

from __future__ import annotations

import threading
from typing import Final

PATIENCE_S: Final = 60.0  # then a caller gives up
QUIET_S: Final = 30.0


class Turns(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._may_work = threading.Event()
        self._resting = threading.Event()
        self._over = threading.Event()
        self._may_work.set()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                if not self._may_work.is_set():
                    self._resting.set()
                    self._may_work.wait()
                    self._resting.clear()
                    continue
                self.turn()
        except BaseException as error:  # noqa: BLE001 - shown by rest and end
            self.failed = error
        finally:
            self._resting.set()

    def turn(self) -> None:
        raise NotImplementedError

    def rest(self) -> None:
        self._may_work.clear()

    def wait_rest(self) -> None:
        assert self._resting.wait(PATIENCE_S + QUIET_S), f"{self} does not rest"
        if self.failed is not None:
            raise self.failed

    def go_on(self) -> None:
        self._resting.clear()
        self._may_work.set()

    def end(self) -> None:
        self._over.set()
        self._may_work.set()
        self.join(PATIENCE_S + QUIET_S)

    def pause_s(self, seconds: float) -> None:
        self._over.wait(seconds)
