"""Python imports a module of this name first of all; the folder is on PYTHONPATH while a mutant of code is tried."""

from __future__ import annotations

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("hook.py")))["install"]()
