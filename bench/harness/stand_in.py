"""What the harness's ``docker`` does: the few commands that it uses, for PostgreSQL and for adapters."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["Answer", "Container", "Program", "Run", "StandIn", "parsed_run", "serve"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What ``docker`` does: it becomes *argv*, or ends with *code*."""

    code: int = 0
    said: str = ""
    argv: Sequence[str] = ()
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Program:
    """An adapter that runs without a container: its command line, and where."""

    argv: Sequence[str]
    cwd: Path


@dataclass(frozen=True, slots=True)
class Run:
    """The words of ``docker run``: environment, directories of the host by those of the container, and image."""

    env: Mapping[str, str]
    mounts: Mapping[str, str]
    image: str

    def here(self, value: str) -> str:
        """A value of the environment; a path of the container becomes the path of the host."""
        for there, here in self.mounts.items():
            if value == there or value.startswith(f"{there}/"):
                return here + value.removeprefix(there)
        return value


class Container(Protocol):
    """The PostgreSQL that stands for the harness's container."""

    def start(self) -> None:
        """Start it, unless it runs."""

    def stop(self) -> None:
        """Stop it, if it runs."""

    def is_running(self) -> bool:
        """Whether it runs."""
        ...


def parsed_run(words: Sequence[str]) -> Run:
    """
    Those of ``docker run``.

    Raises:
        ValueError: An option is unknown.
    """
    env, mounts = dict[str, str](), dict[str, str]()
    rest = iter(words)
    for word in rest:
        if word == "-e":
            name, _, value = next(rest).partition("=")
            env[name] = value
        elif word == "-v":
            here, _, there = next(rest).partition(":")
            mounts[there] = here
        elif word == "--network":
            next(rest)
        elif word.startswith("-") and word not in {"--rm", "-i"}:
            raise ValueError(f"docker run {word}: unknown here")
        elif not word.startswith("-"):
            return Run(env, mounts, word)
    raise ValueError("docker run: no image is named")


class StandIn:
    """
    Answers commands.

    Args:
        server: The PostgreSQL.
        programs: Adapters by the names of their images.
    """

    def __init__(self, server: Container, programs: Mapping[str, Program]) -> None:
        self._server = server
        self._programs = programs

    def answer(self, words: Sequence[str]) -> Answer:
        """What ``docker WORD…`` is to do."""
        match list(words):
            case ["compose", "up" | "start", *_]:
                self._server.start()
            case ["compose", "stop" | "down", *_]:
                self._server.stop()
            case ["compose", "exec", *_]:
                return Answer(0 if self._server.is_running() else 1)
            case ["build", *rest]:
                return self._known(rest[rest.index("-t") + 1])
            case ["run", *rest]:
                return self._run(parsed_run(rest))
            case ["--version"] | ["compose", "version"]:
                return Answer(said="no docker: python -m bench.harness stands in for it")
            case _:
                return Answer(2, f"docker {' '.join(words)}: unknown here")
        return Answer()

    def _known(self, image: str) -> Answer:
        if image in self._programs:
            return Answer()
        return Answer(1, f"{image} does not start without docker; these do: {', '.join(sorted(self._programs))}")

    def _run(self, run: Run) -> Answer:
        program = self._programs.get(run.image)
        if program is None:
            return self._known(run.image)
        return Answer(
            argv=program.argv, cwd=str(program.cwd), env={key: run.here(value) for key, value in run.env.items()}
        )


def serve(stand_in: StandIn, path: Path) -> socketserver.UnixStreamServer:
    """A server for ``docker.py`` at *path*; ``serve_forever`` answers, one after the other."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                answer = stand_in.answer(json.loads(self.rfile.readline()))
            except Exception as error:  # noqa: BLE001 - the harness shows it
                answer = Answer(1, f"docker: {error}")
            self.wfile.write(json.dumps(asdict(answer)).encode() + b"\n")

    return socketserver.UnixStreamServer(str(path), Handler)
