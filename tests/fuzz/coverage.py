"""
``python -m tests.fuzz.coverage``: atheris, which keeps what reaches new code, on everything that decodes.

Most of the decoding is done by msgspec, in C, where atheris sees nothing. So what a property has found (which kind,
which error at which place) counts as code that was reached, too: a function of its own is called for it. And half of
the changes are of values within the MessagePack, not of bytes, so that most inputs are frames at all.
"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import tempfile
import zlib
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.fuzz import corpus

BUILD: Final = Path(__file__).parents[2] / "build" / "fuzz"
PACKAGES: Final = BUILD / "packages"
INPUTS: Final = BUILD / "inputs"  # all that were ever interesting on this machine
INSTRUMENTED: Final = ("pulse.protocol", "pulse.client.records", "pulse.client.requests", "pulse_supervisor")
FEATURES: Final = 1 << 14
LONGEST: Final = 4096  # bytes of an input
INPUT_S: Final = 10  # for one input
MEMORY_MIB: Final = 2048
CHILD: Final = "--child"
BUS: Final[Mapping[str, Mapping[str, object]]] = {
    "hello": {"name": "a", "pid": 0},
    "ready": {},
    "pong": {"turn_age_s": 0.5},
    "hint": {"to": "b", "event": "work", "data": {"n": 1}},
    "status": {},
    "failed": {"message": "no"},
    "ok": {"database": {"ok": True}},
    "error": {"code": "internal", "message": "no"},
}


def main() -> int:
    """Fuzz for so many minutes; 0: nothing was found, 1: something was, and stands in the directory that is named."""
    parser = ArgumentParser(prog="python -m tests.fuzz.coverage", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the choices; 0: a new one")
    words = parser.parse_args()
    INPUTS.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate([*corpus.load(), *seeds()]):
        (INPUTS / f"seed-{number}").write_bytes(one)
    options = [
        f"-max_total_time={words.minutes * 60:.0f}",
        f"-seed={words.seed}",
        f"-max_len={LONGEST}",
        f"-timeout={INPUT_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={BUILD}/found-",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    code = run([*options, str(INPUTS)])
    if code:
        sys.stdout.write(f"found: look at {BUILD}/found-*\n")
        return 1
    keep()
    return 0


def keep() -> None:
    """Put the smallest inputs that together find all that was found into the repository."""
    from tests.fuzz.properties import check

    with tempfile.TemporaryDirectory(dir=BUILD) as merged:
        run(["-merge=1", f"-max_len={LONGEST}", merged, str(INPUTS)])
        found = [file.read_bytes() for file in Path(merged).iterdir()]
    few = corpus.chosen([*found, *corpus.load()], check)
    corpus.save(few)
    sys.stdout.write(f"corpus: {len(few)} inputs of {len(found)}, {corpus.FILE.stat().st_size} bytes\n")


def run(options: Sequence[str]) -> int:
    """Let atheris do something, in a process of its own: it does not return."""
    return subprocess.run([sys.executable, "-m", "tests.fuzz.coverage", CHILD, *options], check=False).returncode


def seeds() -> list[bytes]:
    """A frame of each kind for each side, right and spoiled."""
    from pulse.protocol import ANSWERS
    from tests.fuzz import properties
    from tests.fuzz.shapes import Maker
    from tests.fuzz.spoiling import spoil

    rng, made = random.Random(1), list[bytes]()
    bodies = [
        (properties.server, {name: kinds[0] for name, kinds in properties.OF_PEERS.items()}),
        (properties.peer, dict(ANSWERS)),
    ]
    for party, kinds in bodies:
        for name, kind in kinds.items():
            body = Maker(rng).body(kind)
            made.append(properties.an_input(party, [name, 1, body]))
            made.append(properties.an_input(party, [name, 1, spoil(rng, body)], ["ping", 2, {}]))
    for name, plain in BUS.items():
        made.append(properties.an_input(properties.bus, [name, 1, plain], ["pong", 1, {"turn_age_s": 1}]))
    return [one for one in made if len(one) <= LONGEST]


# The process that fuzzes.


def child(words: Sequence[str]) -> None:
    """Hand over to atheris."""
    sys.path.insert(0, str(PACKAGES))
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        from tests.fuzz import properties
    reached = features(atheris)

    def one_input(data: bytes) -> None:
        for found in properties.check(data):
            reached[zlib.crc32(corpus.alike(found).encode()) % FEATURES]()

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return changed(data, rng)[:most]

    atheris.Setup([str(itself()), *words], one_input, custom_mutator=change)
    atheris.Fuzz()


def itself() -> Path:
    """A program that is this process once more: libFuzzer merges in processes of its own, by what it was called."""
    program = BUILD / "again"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.coverage {CHILD} "$@"\n', "utf-8")
    program.chmod(0o755)
    return program


def features(atheris: Any) -> list[Callable[[], None]]:
    """Functions that do nothing but be seen by atheris."""
    space: dict[str, Any] = {}
    exec("\n".join(f"def f{number}(): pass" for number in range(FEATURES)), space)  # noqa: S102 - its own text
    return [atheris.instrument_func(space[f"f{number}"]) for number in range(FEATURES)]


def changed(data: bytes, rng: random.Random) -> bytes:
    """*data* with one of its frames changed as MessagePack; other bytes where there is none."""
    import msgpack

    from tests.fuzz.spoiling import framed, mutated, pack, spoil

    head, frames = data[:1] or b"\0", split(data[1:])
    if not frames:
        return head + framed(mutated(rng, data[1:]))
    at = rng.randrange(len(frames))
    try:
        value = msgpack.unpackb(frames[at], strict_map_key=False)
        kind, number, body = value[:3]
        if not isinstance(body, dict):
            raise TypeError  # noqa: TRY301 - not a frame, as below
        frames[at] = pack([kind, rng.choice((number, None, 1)), spoil(rng, body)])
    except Exception:  # noqa: BLE001 - whatever it is, it is no frame: bytes then
        frames[at] = mutated(rng, frames[at])
    if rng.random() < 0.1:
        frames.insert(at, rng.choice(frames))
    elif len(frames) > 1 and rng.random() < 0.2:
        del frames[at]
    return head + b"".join(map(framed, frames))


def split(stream: bytes) -> list[bytes]:
    """The payloads in a stream, as far as their lengths are right."""
    found: list[bytes] = []
    at = 0
    while at + 4 < len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        found.append(stream[at + 4 : end])
        at = end
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(sys.argv[2:])
    else:
        sys.exit(main())
