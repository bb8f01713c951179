"""All mutants, in an order that plugin and runner agree on."""

from __future__ import annotations

from typing import Final

from tests.mutants import depths, doctor, epochs, functions, jobs, operations, others, schedules, why
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutant import Mutant

MUTANTS: Final[list[Mutant]] = [
    *jobs.MUTANTS,
    *others.MUTANTS,
    *schedules.MUTANTS,
    *functions.MUTANTS,
    *why.MUTANTS,
    *depths.MUTANTS,
    *operations.MUTANTS,
    *doctor.MUTANTS,
    *epochs.MUTANTS,
]
EVERY: Final[list[Mutant]] = [*MUTANTS, *EQUIVALENT]
