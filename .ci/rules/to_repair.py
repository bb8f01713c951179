"""
What still breaks a rule, as a number per file: ``lists/to_repair.toml``.

The list can only shrink. A file with more offences than its number fails; so does one with fewer, until the number is
lowered: ``python -m rules --rewrite`` writes the list anew, and refuses where the sum of a rule would grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rules.tree import Offence

LIST: Final = ".ci/rules/lists/to_repair.toml"
HEAD: Final = """\
# What still breaks a rule: how often, in which file. It can only shrink: `PYTHONPATH=.ci .venv/bin/python -m rules --rewrite`
# writes it anew, and refuses where the sum of a rule would grow.
"""
Numbers = Mapping[str, Mapping[str, int]]  # rule: path: how often


def count(offences: Mapping[str, Sequence[Offence]]) -> dict[str, dict[str, int]]:
    """How much each file breaks each rule."""
    counted: dict[str, dict[str, int]] = {}
    for rule, found in offences.items():
        numbers: Counter[str] = Counter()
        for offence in found:
            numbers[offence.path] += offence.weight
        if numbers:
            counted[rule] = dict(sorted(numbers.items()))
    return counted


def compare(rule: str, offences: Sequence[Offence], listed: Mapping[str, int]) -> Iterator[Offence]:
    """What is wrong beyond the list, and what the list still has though it is repaired."""
    counted = count({rule: offences}).get(rule, {})
    for path in sorted({*counted, *listed}):
        found, expected = counted.get(path, 0), listed.get(path, 0)
        if found > expected:
            yield from (one for one in offences if one.path == path)
            if expected:
                yield Offence(path, 0, f"{found} offences; {LIST} has {expected}")
        elif found < expected:
            yield Offence(LIST, 0, f"[{rule}] {path}: {expected} listed, {found} found: run --rewrite")


def grown(before: Numbers, after: Numbers) -> list[str]:
    """The rules whose sum would grow, with both sums."""
    sums = {rule: (sum(before.get(rule, {}).values()), sum(after[rule].values())) for rule in after}
    return [f"{rule}: from {old} to {new}" for rule, (old, new) in sums.items() if new > old]


def written(numbers: Numbers) -> str:
    """The list as TOML."""
    parts = [HEAD]
    for rule, paths in sorted(numbers.items()):
        parts += [
            f"\n[{rule}]  # {sum(paths.values())}\n",
            *(f'"{path}" = {number}\n' for path, number in sorted(paths.items())),
        ]
    return "".join(parts)
