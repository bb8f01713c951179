"""
`python -m bench`: measure this machine, scene by scene, beside a bare SQL loop on the same PostgreSQL.

Without a scene: the default set, in less than five minutes. `python -m bench table FILE.json…` prints results as
Markdown. docs/performance.md tells what each scene measures, and how to read it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench import table
from bench.recovery_scene import BenchError
from bench.results import Sample, document, figures, merged
from bench.scenes import SCENES
from bench.sizes import SIZES, changed
from bench.stage import Sql, Stage, stage
from pulse.errors import PulseError

MOST_ROUNDS: Final = 100
ALL: Final = "all"
_SIGNALED: Final = 128  # plus the number: how a shell says that a signal ended a program
FAILURES: Final = (BenchError, PulseError, asyncpg.PostgresError, OSError)  # of one scene; the others are measured


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """
    The options.

    Raises:
        BenchError: One is wrong: names it, and what is allowed.
    """
    listed = "\n".join(f"  {'*' if one.default else ' '} {name:<10} {one.about}" for name, one in SCENES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"scenes (* of the default set; {ALL}: all of them):\n{listed}",
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE")
    parser.add_argument("--rounds", default="3", metavar="N", help="medians of so many (default: 3)")
    parser.add_argument("--size", default="default", help=f"{', '.join(SIZES)}: how much of everything")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="one number of the size")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the result with all runs")
    options = parser.parse_args(words)
    for name in options.scenes:
        if name not in SCENES and name != ALL:
            raise BenchError(f"there is no scene {name!r}; there are {', '.join(SCENES)}, and {ALL}")
    if not (options.rounds.isdecimal() and 1 <= int(options.rounds) <= MOST_ROUNDS):
        raise BenchError(f"--rounds {options.rounds}: must be a whole number from 1 to {MOST_ROUNDS}")
    options.rounds = int(options.rounds)
    if options.size not in SIZES:
        raise BenchError(f"--size {options.size}: must be one of {', '.join(SIZES)}")
    options.size = changed(SIZES[options.size], options.set)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise BenchError(f"--json {options.json}: there is no directory {options.json.absolute().parent}")
    return options


def chosen(names: Sequence[str]) -> list[str]:
    """The scenes to measure, in the order in which they are listed."""
    return [name for name, one in SCENES.items() if ALL in names or name in names or (not names and one.default)]


def told(sample: Sample) -> str:
    """One sample for people."""
    compared = f"  × {table.ratio(sample.value / sample.reference)} of {sample.against}" if sample.reference else ""
    return f"    {sample.name:<44} {table.number(sample.value):>9} {sample.unit}{compared}"


class Results:
    """What was found so far, and how long it took."""

    def __init__(self, names: Sequence[str]) -> None:
        self.samples: dict[str, list[Sample]] = {name: [] for name in names}
        self.took_s = dict.fromkeys(names, 0.0)
        self.failures: list[dict[str, str]] = []

    def measure(self, on: Stage, name: str, rounds: int) -> None:
        """One round of a scene; a failure is printed, and is no figure."""
        print(f"{name}, round {on.round + 1} of {rounds}" if rounds > 1 else name, flush=True)
        began_s, number = time.monotonic(), on.round
        try:
            found = SCENES[name].measure(on)
        except FAILURES as error:
            message = f"{type(error).__name__}: {error}" if not isinstance(error, BenchError) else str(error)
            self.failures.append({"scene": name, "error": message})
            print(f"    failed: {message}", file=sys.stderr, flush=True)
            found = []
        finally:
            on.round = number
        self.took_s[name] += time.monotonic() - began_s
        self.samples[name] += found
        print("\n".join(map(told, found)), flush=True)

    def scenes(self) -> list[dict[str, Any]]:
        """For the document."""
        return [
            {"name": name, "about": SCENES[name].about, "took_s": self.took_s[name], "figures": figures(found)}
            for name, found in self.samples.items()
        ]


def run(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure; the document, which is kept in the file after each scene, and whether all went well."""
    results = Results(chosen(options.scenes))
    size = {name: getattr(options.size, name) for name in options.size.__slots__}
    with stage(options.size) as on:
        with Sql(on.dsn) as sql:
            postgres = sql.value("SHOW server_version")
        found: dict[str, Any] = {}
        for number in range(options.rounds):
            for name in results.samples:
                if number and SCENES[name].once:
                    continue
                results.measure(on, name, 1 if SCENES[name].once else options.rounds)
                more = {"postgres": postgres, "rounds": options.rounds, "size": size, "failures": results.failures}
                found = document(results.scenes(), **more)
                if options.json is not None:
                    options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            on.next_round()
    return found, not results.failures


def show(words: Sequence[str]) -> None:
    """Print result files as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m bench table", description=table.__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(words)
    print("\n".join(table.markdown(merged([table.read(path) for path in options.files]))))


def end(number: int, _frame: object) -> None:
    """A signal that would end this process at once ends it so that all is stopped and removed first."""
    sys.exit(_SIGNALED + number)


def main() -> None:
    """Measure, and print what was found."""
    signal.signal(signal.SIGTERM, end)
    try:
        if sys.argv[1:2] == ["table"]:
            show(sys.argv[2:])
            return
        options = parsed(sys.argv[1:])
        found, well = run(options)
        print("\n" + "\n".join(table.markdown(found)))
    except BenchError as error:
        sys.exit(f"bench: {error}")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
