"""
`python -m bench.harness DIR`: run the public harness on this machine, without docker.

DIR is a clone of github hardbyte/postgresql-job-queue-benchmarking. All further words are those of the harness's
`bench run`; its results are in DIR/results.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from bench.harness import docker, register
from bench.harness.place import harness_python, postgres, programs
from bench.harness.stand_in import StandIn, serve
from bench.peers.install import clean_environment, default_cache
from bench.peers.peer import Unavailable
from pulse.errors import PulseError

NATIVE: Final = ("pulse", "pgboss", "procrastinate")  # what starts without docker
ROOT: Final = Path(__file__).resolve().parents[2]
SHORT: Final = ("--phase", "warmup=warmup:10s", "--phase", "clean=clean:30s")


def main() -> int:
    """Run the harness; its exit code, or 1 if it cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m bench.harness", description=__doc__, allow_abbrev=False)
    parser.add_argument("clone", type=Path, metavar="DIR", help="the clone of the harness")
    parser.add_argument("--systems", default=",".join(NATIVE), help=f"of {', '.join(NATIVE)}; all, unless told")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where environments are kept")
    asked, words = parser.parse_known_args()
    systems = asked.systems.split(",")
    if unknown := sorted({*systems}.difference(NATIVE)):
        parser.error(f"--systems {', '.join(unknown)}: those that start without docker are {', '.join(NATIVE)}")
    if not (asked.clone / "bench_harness").is_dir():
        parser.error(f"{asked.clone} is no clone of the harness: it has no directory bench_harness")
    signal.signal(signal.SIGTERM, _end)
    try:
        return run(asked.clone.resolve(), systems, asked.cache.resolve(), words or list(SHORT))
    except (Unavailable, PulseError) as error:
        print(f"bench.harness: {error}", file=sys.stderr)
        return 1


def run(clone: Path, systems: list[str], cache: Path, words: list[str]) -> int:
    """Install what is missing, start PostgreSQL, and run the harness on it."""
    python, adapters = harness_python(cache, clone), programs(cache, clone, systems)
    with tempfile.TemporaryDirectory(prefix="pulse-harness-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # as root PostgreSQL runs as another user, who has to get through
        with postgres(directory, clone) as server, serve(StandIn(server, adapters), directory / "docker.sock") as asked:
            threading.Thread(target=asked.serve_forever, daemon=True).start()
            path = directory / "bin"
            path.mkdir()
            (path / "docker").write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {docker.__file__} "$@"\n', "utf-8"
            )
            (path / "docker").chmod(0o755)
            env = {
                **clean_environment(),
                "PATH": f"{path}:{os.environ['PATH']}",
                "PYTHONPATH": str(clone),
                docker.SOCKET: str(directory / "docker.sock"),
                register.PYTHON: sys.executable,
            }
            command = [str(python), register.__file__, "run", "--systems", ",".join(systems), *words]
            code = subprocess.run(command, cwd=clone, env=env, check=False).returncode
            asked.shutdown()
    return code


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
