"""Reading a stream on request only; and the lines of a file that programs append to, each once."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from tests.support.waiting import until

DEADLINE_S: Final = 10.0
LOOK_S: Final = 0.025  # a pipe has room for more only after each look
PIPE_BYTES: Final = 4096  # as small as a pipe can be
T = TypeVar("T")


class Reader:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.text = b""
        os.set_blocking(fd, False)

    def look(self, size: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self._fd, size)

    def read(self, wanted: Callable[[bytes], object]) -> bytes:
        """All that has come, as soon as it is *wanted*."""

        def look() -> object:
            self.look(1 << 20)
            return wanted(self.text)

        until(look, "the text", DEADLINE_S, longest_pause_s=LOOK_S)
        return self.text


class JsonLines(Generic[T]):
    """A file to which programs append JSON objects, a line each; *made* makes entries of them, and *key* finds them."""

    def __init__(self, path: Path, made: Callable[[dict[str, Any]], T], key: Callable[[T], object]) -> None:
        self._path = path
        self._made = made
        self._key = key
        self._read_bytes = 0
        self._all: list[T] = []
        self._by_key: defaultdict[object, list[T]] = defaultdict(list)

    def read(self, value: object = None) -> list[T]:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            text, end, _ = file.read().rpartition(b"\n")  # the last line may be half written
            self._read_bytes += len(text + end)
            for line in (one for one in text.splitlines() if one.startswith(b"{")):
                with contextlib.suppress(json.JSONDecodeError):
                    entry = self._made(json.loads(line))
                    self._all.append(entry)
                    self._by_key[self._key(entry)].append(entry)
        return self._all if value is None else self._by_key[value]
