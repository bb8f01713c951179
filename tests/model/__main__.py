"""
Verdicts of the models; or the shortest way to the violation in one.

    python -m tests.model                           all that must hold, and all that must not
    python -m tests.model ladder NEVER_KILLS        the variants of this model with these flags, step by step
"""

from __future__ import annotations

import sys
import time

from tests.model.spin import Variant, missing, verify
from tests.model.variants import BREAK, HOLD


def show(variant: Variant) -> bool:
    began_s = time.monotonic()
    verdict = verify(variant)
    as_meant = verdict.is_complete if not variant.breaks else True
    as_meant &= verdict.broken == ({variant.breaks} if variant.breaks else set())
    said = ", ".join(sorted(verdict.broken)) or "holds"
    mark = "" if as_meant else "   NOT AS IT SHOULD BE"
    print(f"{time.monotonic() - began_s:5.1f} s {verdict.states:9,} states  {variant}: {said}{mark}")  # noqa: T201
    return as_meant


def main(words: list[str]) -> int:
    """Show all, or those that *words* name; 1 when one is wrong, 2 when nothing can be shown."""
    absent = missing()
    variants = [one for one in (*HOLD, *BREAK) if not words or [one.model, *one.flags] == words]
    if absent or not variants:
        print(absent or f"no such variant: {' '.join(words)}", file=sys.stderr)  # noqa: T201
        return 2
    if words:
        for one in variants:
            print(verify(one, shortest=True).trail)  # noqa: T201
    shown = [show(one) for one in variants]
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
