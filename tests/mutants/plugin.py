"""A pytest plugin that puts the mutant number PULSE_MUTANT in force; loaded before anything of the store is."""

from __future__ import annotations

import os
from typing import Final

NUMBER: Final = "PULSE_MUTANT"

if NUMBER in os.environ:
    from tests.mutants.table import EVERY

    EVERY[int(os.environ[NUMBER])].apply()
