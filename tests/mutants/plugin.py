"""A pytest plugin that puts the mutant in force whose number PULSE_MUTANT holds; loaded before anything of the store."""

from __future__ import annotations

import os
from typing import Final

NUMBER: Final = "PULSE_MUTANT"

if NUMBER in os.environ:
    from tests.mutants.table import EVERY

    EVERY[int(os.environ[NUMBER])].apply()
