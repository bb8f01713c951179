"""
Simulates: machines, workers, a database and everything that goes wrong with them, each run a function of its seed.

    python -m tests.simulation --seeds A-B       many; the first that goes wrong is shown, and ends it
    python -m tests.simulation --seed N          one run, and what happened in it
    python -m tests.simulation --variant NAME    a guard is taken out: one of a few seeds must find that (or several)

Exit code 0: as it should be; 1: it is not.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from typing import Final

from tests.simulation.machine import patches
from tests.simulation.many import Report, hunt, run_many, run_one
from tests.simulation.nemesis import EVIL
from tests.simulation.variants import VARIANTS

HASH_SEED: Final = "PYTHONHASHSEED"  # the order of sets of strings depends on it


def span(text: str) -> range:
    first, _, last = text.rpartition("-")
    try:
        seeds = range(int(first or 1), int(last) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise ArgumentTypeError(f"{text!r}: seeds are allowed as in 1-1000")
    return seeds


def chosen(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    strangers = set(words) - EVIL.keys()
    if strangers:
        raise ArgumentTypeError(f"there is no {', '.join(sorted(strangers))}; there are {', '.join(EVIL)}")
    return words


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.simulation", description="Deterministic simulation of recovery.")
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--seeds", type=span, default="1-1000", help="as in 1-1000 (the default); N: the first N")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="side by side (default: one per CPU)"
    )
    parser.add_argument(
        "--variant", choices=sorted(VARIANTS), metavar="NAME", action="append",
        help="a guard to be taken out; each alone",
    )  # fmt: skip
    parser.add_argument("--only", type=chosen, default=(), metavar="NAMES", help="what goes wrong, with commas")
    words = parser.parse_args()
    variant = words.variant[0] if words.variant else None
    if words.seed is not None:
        with patches.installed():
            report = run_one(words.seed, variant, only=words.only, keep_trace=True)
    elif words.variant:
        return max([show_hunt(one) for one in words.variant])
    else:
        report = run_many(words.seeds, words.processes, words.only)
    show(report, _again(variant, words.only))
    return 1 if report.findings else 0


def _again(variant: str | None, only: Sequence[str]) -> str:
    return "".join(
        (f" --variant '{variant}'" if variant is not None else "", f" --only '{','.join(only)}'" if only else "")
    )


def show(report: Report, options: str) -> None:
    counts = ", ".join(f"{what} {count}" for what, count in sorted(report.counts.items()))
    lines = [*report.trace, f"{report.runs} runs, {report.simulated_s:.0f} simulated seconds: {counts}"]
    if report.took_s:
        lines.append(f"took {report.took_s:.1f} s")
    if report.findings:
        lines += [f"WRONG: {one}" for one in report.findings]
        lines.append(f"again: python -m tests.simulation --seed {report.seed}{options}")
    tell(lines)


def show_hunt(variant: str) -> int:
    report, control = hunt(variant)
    if report.seed is None:
        tell([f"not found within {VARIANTS[variant].within} seeds from {VARIANTS[variant].first} on: {variant}"])
        return 1
    tried = report.seed - VARIANTS[variant].first + 1
    lines = [f"found by seed {report.seed}, {tried} tried: {variant}", *(f"  {one}" for one in report.findings)]
    if control.findings:
        lines += ["but the same seed goes wrong without it:", *(f"WRONG: {one}" for one in control.findings)]
    tell(lines)
    return 1 if control.findings else 0


def tell(lines: list[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    if os.environ.get(HASH_SEED) != "0":
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, HASH_SEED: "0"})  # noqa: S606 - this program, once more
    sys.exit(main())
