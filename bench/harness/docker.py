"""The program ``docker`` that the harness finds: asks the bench what to do, by a Unix socket, and does it."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Final

SOCKET: Final = "PULSE_BENCH_DOCKER"  # the variable that names the socket


def main() -> int:
    """Ask, and become the program that the answer names, or end with its exit code."""
    with socket.socket(socket.AF_UNIX) as asked, asked.makefile("rwb") as stream:
        asked.connect(os.environ[SOCKET])
        stream.write(json.dumps(sys.argv[1:]).encode() + b"\n")
        stream.flush()
        answer = json.loads(stream.readline())
    if answer["said"]:
        print(answer["said"], file=sys.stderr)
    if argv := answer["argv"]:
        os.chdir(answer["cwd"])
        os.execve(argv[0], argv, {**os.environ, **answer["env"]})  # noqa: S606 - no shell is wanted
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
