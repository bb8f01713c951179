#!/usr/bin/env -S python -IS
"""
The ``pulse`` that the blocks of a page call: ``pulse ctl`` in a warm process, all else as the real one.

Sixty times an interpreter that imports pulse would take a quarter of a second. This one imports the standard library
alone, and hands its words, environment and descriptors to the server of ``warm.py``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from pathlib import Path

SERVER = "WARM_CTL_FD"  # the variable with the number of the server's socket


def main() -> int:
    words = sys.argv[1:]
    if words[:1] != ["ctl"]:
        os.execv(Path(sys.executable).with_name("pulse"), ["pulse", *words])  # noqa: S606 - the shell knows this pid
    told, theirs = socket.socketpair()
    request = ["pulse.cli.main", words, dict(os.environ), str(Path.cwd()), os.nice(0), False]
    with socket.socket(fileno=int(os.environ[SERVER])) as server, theirs:
        socket.send_fds(server, [json.dumps(request).encode()], [theirs.fileno(), 0, 1, 2])
    with told, told.makefile("rb") as answers:
        _, code = struct.unpack("=qq", answers.read(16))
    return int(code) if code >= 0 else 128 - int(code)


if __name__ == "__main__":
    sys.exit(main())
