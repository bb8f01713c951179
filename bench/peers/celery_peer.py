"""celery on Redis: no PostgreSQL at all; what many would use instead."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.child import running
from bench.peers.foreign import PythonPeer
from bench.peers.install import clean_environment
from bench.peers.peer import Facts, Place, Unavailable


class Celery(PythonPeer):
    """A prefork pool of two; its Redis writes nothing to disk."""

    facts = Facts(
        name="celery",
        version="5.7.0",
        settings="Redis without persistence on a Unix socket, prefork 2, plain def, prefetch multiplier 64, no results",
        source="docs.celeryq.dev: userguide/optimizing",
        fence="no",
        keeps="nothing",
        most_jobs=10_000,
    )
    requirements = ("celery[redis]==5.7.0",)
    program = "celery_program"

    def install(self, cache: Path) -> None:
        """Its venv; the server has to be there."""
        if shutil.which("redis-server") is None:
            raise Unavailable("redis-server is not installed")
        super().install(cache)

    @contextmanager
    def services(self, place: Place) -> Iterator[str]:
        """A Redis of its own."""
        server, path = shutil.which("redis-server"), place.directory / "redis.sock"
        assert server is not None
        command = [server, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
        with running([*command, "--dir", str(place.directory)], clean_environment(), place.log) as redis:
            redis.wait_for(path)
            yield f"redis+socket://{path}"
