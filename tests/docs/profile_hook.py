"""
Notes which functions of the product a process calls; its copy ``sitecustomize.py`` is loaded by every Python.

Needs only the standard library. A byte that all processes share says which job is on its way (0: none); each function
that is called meanwhile is appended to a file of the process, once for each job.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

DIRECTORY: Final = "PULSE_WAY_DIR"  # the variable that names where the files are
ROOT: Final = "PULSE_WAY_ROOT"  # and the one that names the checkout
SWITCH: Final = "switch"


class Notes:
    def __init__(self, directory: Path, root: str) -> None:
        with (directory / SWITCH).open("rb") as file:
            self._switch = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        self._directory = directory
        self._products = tuple(f"{root}/{part}/" for part in ("pulse", "actors", "supervisor"))
        self._root_chars = len(root) + 1
        self._seen: set[tuple[int, str, str]] = set()
        os.register_at_fork(after_in_child=self._seen.clear)

    def hook(self, frame: FrameType, event: str, _argument: object) -> None:
        job = self._switch[0]
        if not job or event != "call":
            return
        code = frame.f_code
        if code.co_code[frame.f_lasti + 1] & 3:  # a coroutine goes on after an await (the argument of RESUME)
            return
        path = code.co_filename
        function = code.co_qualname.replace(".<locals>", "")  # type: ignore[attr-defined,unused-ignore]  # since 3.11
        key = (job, path, function)
        if key not in self._seen and path.startswith(self._products):
            self._seen.add(key)
            line = f"{job}\t{path[self._root_chars :]}\t{function}\t{' '.join(sys.argv)[:200]}\n"
            with (self._directory / f"{os.getpid()}.calls").open("a", encoding="utf-8") as file:
                file.write(line)


if DIRECTORY in os.environ:
    _notes = Notes(Path(os.environ[DIRECTORY]), os.environ[ROOT])
    threading.setprofile(_notes.hook)
    sys.setprofile(_notes.hook)
