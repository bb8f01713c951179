"""The real supervisor over scripted children; started by the tests as a program of its own."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pulse import config
from pulse_supervisor.children.spec import ChildKind, ChildSpec, LivenessLimits, Placeholder, StopStep
from pulse_supervisor.main import run as run_supervisor
from pulse_supervisor.main import saying_errors

SCRIPT = Path(__file__).with_name("supervisor_child.py")


class Script(msgspec.Struct, frozen=True):
    name: str
    words: list[str] = []
    kind: str = "actor"
    hello_s: float = 30.0
    ready_s: float = 30.0
    stop_s: float = 5.0


def child(script: Script, diary: str) -> ChildSpec:
    program = (sys.executable, str(SCRIPT), script.name, "--diary", diary)
    argv: tuple[str | Placeholder, ...] = (*program, *script.words, Placeholder.PARENT_PID)
    term, kill = StopStep(signal.SIGTERM, script.stop_s), StopStep(signal.SIGKILL, 5.0)
    if script.kind == "pool":
        return ChildSpec(script.name, ChildKind.POOL, argv, stop=(term, kill))
    slots = (Placeholder.BUS_FD, Placeholder.LISTEN_FD) if script.name == "dispatcher" else (Placeholder.BUS_FD,)
    limits = LivenessLimits(hello_s=script.hello_s, ready_s=script.ready_s)
    stop = (StopStep(None, script.stop_s), term, kill)
    return ChildSpec(script.name, ChildKind.ACTOR, (*argv, *slots), stop=stop, limits=limits)


def run(words: Sequence[str]) -> int:
    """The arguments: the diary, then the scripts as a JSON array; the rest is environment."""
    diary, text = words
    children = [child(script, diary) for script in msgspec.json.decode(text, type=list[Script])]
    actors = [one for one in children if one.kind is ChildKind.ACTOR]
    pools = [one for one in children if one.kind is ChildKind.POOL]
    return run_supervisor(config.load(os.environ), actors, pools)


def main() -> int:
    return saying_errors(functools.partial(run, sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
