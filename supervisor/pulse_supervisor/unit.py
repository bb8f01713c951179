"""The unit of systemd, for the installation that this program belongs to."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

_NAME: Final = "pulse-supervisor.service"
_PREFIX: Final = "/opt/pulse"  # of the unit as it is delivered


def unit_text(prefix: Path | None = None) -> str:
    """
    The unit, with the paths of an installation in the place of /opt/pulse.

    Args:
        prefix: Of the installation, as ``sys.prefix``, which is the default.

    """
    packaged = files("pulse_supervisor") / _NAME
    source = packaged if packaged.is_file() else Path(__file__).parents[2] / "deploy" / _NAME  # in a checkout
    place = str(sys.prefix if prefix is None else prefix).replace("%", "%%")  # which introduces specifiers there
    return re.sub(rf"{_PREFIX}(?=/(bin|share)/)", lambda _: _quoted(place), source.read_text("utf-8"))


def _quoted(path: str) -> str:
    """As systemd reads it: a blank ends a word."""
    return path.replace("\\", "\\\\").replace(" ", "\\x20")
