"""
What still breaks a rule, as a number per file, or per name: ``lists/to_repair.toml``.

The list can only shrink. One with more offences than its number fails; so does one with fewer, until the number is
lowered: ``.ci/lint rewrite`` rewrites the list, and refuses where the sum of a rule would grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rules.tree import Offence

LISTS: Final = ".ci/rules/lists/"  # what is wrong there is repaired at once
LIST: Final = f"{LISTS}to_repair.toml"
HEAD: Final = """\
# What still breaks a rule: how often, in which file or name. It can only shrink: `.ci/lint rewrite` writes a new one,
# and refuses where the sum of a rule would grow.
"""
Numbers = Mapping[str, Mapping[str, int]]  # rule: path: how often


def count(offences: Mapping[str, Sequence[Offence]]) -> dict[str, dict[str, int]]:
    """How much each file, or name, breaks each rule."""
    counted: dict[str, dict[str, int]] = {}
    for rule, found in offences.items():
        numbers: Counter[str] = Counter()
        for offence in found:
            if not offence.path.startswith(LISTS):
                numbers[offence.listed_as] += offence.weight
        counted[rule] = dict(sorted(numbers.items()))
    return counted


def compare(rule: str, offences: Sequence[Offence], listed: Mapping[str, int]) -> Iterator[Offence]:
    """What is wrong beyond the list, and what the list still has though it is repaired."""
    yield from (one for one in offences if one.path.startswith(LISTS))
    counted = count({rule: offences}).get(rule, {})
    for name in sorted({*counted, *listed}):
        found, expected = counted.get(name, 0), listed.get(name, 0)
        if found > expected:
            yield from (one for one in offences if one.listed_as == name)
            if expected:
                yield Offence(name, 0, f"{found} offences; {LIST} has {expected}")
        elif found < expected:
            yield Offence(LIST, 0, f"[{rule}] {name}: {expected} listed, {found} found: run .ci/lint rewrite")


def grown(before: Numbers, after: Numbers) -> list[str]:
    """The rules whose sum would grow, with both sums; one that is not in the list yet is new."""
    sums = {rule: (sum(before[rule].values()), sum(after[rule].values())) for rule in after if rule in before}
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
