"""Runs the models in promela/ through Spin: to the verifier's C code, to a program, to a verdict."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent / "promela"
DEPTH: Final = 100_000
MEMORY_MB: Final = 900
LARGE: Final = 200_000  # states
LARGE_LIVE: Final = 50_000  # which are gone through many times
STEP_S: Final = 100.0  # for each of the three programs
FOR_EVER: Final = "acceptance cycle"  # what Spin calls it when something that must come may never come

_ERROR: Final = re.compile(r"^pan:\d+: (.*) \(at depth \d+\)$", re.MULTILINE)
_NAME: Final = re.compile(r"\(?(\w+)(?:==0|!=\1)\)+$")
_STATES: Final = re.compile(r"^ *([0-9.e+]+) states, stored", re.MULTILINE)
_PROCTYPE: Final = re.compile(r"^unreached in (proctype|claim) (\w+)$")
_AS_MEANT: Final = ("-end-", "assert((0||")  # not reached: the end of who goes on for ever, and what must not be
_UNREACHED: Final = re.compile(r'^\t(\w+\.pml):(\d+), state \d+, "(.*)"$')


@dataclass(frozen=True, slots=True)
class Variant:
    """
    A model with flags.

    Attributes:
        model: Name of the file, without ``.pml``.
        flags: Defined when it is translated; empty: the protocol as it is meant.
        breaks: The property that does not hold then; '': all hold.
        live: It is about what happens eventually, under weak fairness, instead of what never happens.
        floor: Fewest states that a search must have seen: a model that is blocked by mistake breaks nothing.
    """

    model: str
    flags: tuple[str, ...] = ()
    breaks: str = ""
    live: bool = False
    floor: int = 0

    def __str__(self) -> str:
        return " ".join([self.model, *self.flags, *(["live"] if self.live else [])])


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a search found.

    Attributes:
        broken: Properties that do not hold, by name, or as Spin calls the trouble.
        is_complete: Everything that can happen was looked at.
        unreached: Statements that never ran: process, file, line.
        trail: The steps to the first error.
    """

    states: int
    broken: frozenset[str]
    is_complete: bool
    unreached: frozenset[tuple[str, str, int]]
    output: str = field(repr=False)
    trail: str = field(default="", repr=False)


def missing() -> str:
    absent = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return f"not installed (apt): {', '.join(absent)}" if absent else ""


def verify(variant: Variant, *, shortest: bool = False) -> Verdict:
    """Search *variant* for a violation of the property that it breaks, or of any; *shortest*: by the shortest way."""
    defined = [f"-D{flag}" for flag in variant.flags]
    if variant.live:
        defined.append("-DLIVENESS")
    elif variant.breaks:
        defined.append(f"-DONLY={variant.breaks}")
    source = f"{variant.model}.pml"
    kind = ["-DNFAIR=5"] if variant.live else ["-DSAFETY"]
    search = [f"-m{DEPTH}", "-w20", *(["-a", "-f"] if variant.live else []), "-i" if shortest else "-c1"]
    is_long = variant.floor > (LARGE_LIVE if variant.live else LARGE)
    # To compile well takes longer than a short search; tcc takes a twentieth of gcc's time.
    compiler = ["gcc", "-Og"] if is_long else ["tcc"] if shutil.which("tcc") else ["gcc", "-O0"]
    # Merged statements are fewer steps, but would hide that one was not reached.
    unmerged = [] if variant.live or variant.breaks else ["-o3"]
    with tempfile.TemporaryDirectory(prefix="pulse-model-") as work:
        for path in HERE.glob("*.pml"):
            shutil.copy(path, work)  # Spin writes beside its source
        _run(["spin", *defined, *unmerged, "-a", source], work)
        kind = [*kind, *(["-DREACH"] if shortest else [])]  # else a search for the shortest may miss it
        _run([*compiler, "-w", *kind, f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c"], work)
        output = _run([str(Path(work) / "pan"), *search], work)
        trail = ""
        if shortest and _ERROR.search(output):
            trail = _run(["spin", *defined, "-t", "-p", "-g", source], work)
    return _read(output, trail)


def properties(model: str) -> frozenset[str]:
    """The names of what must hold in *model*, as its file or the one that it includes declares them."""
    text = "".join(path.read_text("utf-8") for path in sorted(HERE.glob(f"{model}*.pml")))
    return frozenset(re.findall(r"(\w+) = \d+", "".join(re.findall(r"hidden byte ([^;]*=[^;]*);", text))))


def _run(command: list[str], work: str) -> str:
    ended = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=STEP_S, check=False)
    output = ended.stdout + ended.stderr
    if ended.returncode != 0:
        message = f"{command[0]} failed: {output[-2000:]}"
        raise RuntimeError(message)
    return output


def _read(output: str, trail: str) -> Verdict:
    broken: set[str] = set()
    for text in _ERROR.findall(output):
        name = _NAME.search(text)
        broken.add(text if name is None else name[1])
    states = _STATES.search(output)
    if states is None:
        message = f"the verifier did not come to its end: {output[-2000:]}"
        raise RuntimeError(message)
    is_complete = "Search not completed" not in output and "max search depth too small" not in output
    return Verdict(int(float(states[1])), frozenset(broken), is_complete, _unreached(output), output, trail)


def _unreached(output: str) -> frozenset[tuple[str, str, int]]:
    found: set[tuple[str, str, int]] = set()
    process = ""
    for line in output.splitlines():
        if head := _PROCTYPE.match(line):
            process = head[2] if head[1] == "proctype" else ""
        elif process and (statement := _UNREACHED.match(line)) and not statement[3].startswith(_AS_MEANT):
            found.add((process, statement[1], int(statement[2])))
    return frozenset(found)
