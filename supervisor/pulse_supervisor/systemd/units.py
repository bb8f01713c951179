"""What systemd needs, for the installation that this program belongs to."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

FILES: Final = {  # what is asked for: where it lies below deploy/
    "server": "pulse-supervisor.service",
    "worker": "pulse-worker@.service",
    "sysusers": "sysusers.d/pulse.conf",
    "tmpfiles": "tmpfiles.d/pulse.conf",
}
_PREFIX: Final = "/opt/pulse"  # of the units as they are delivered


def unit_text(which: str, prefix: Path | None = None) -> str:
    """
    A unit, or another file, with the paths of an installation in the place of /opt/pulse.

    Args:
        which: Of FILES.
        prefix: Of the installation, as ``sys.prefix``, which is the default.
    """
    packaged = files("pulse_supervisor") / "deploy" / FILES[which]
    source = packaged if packaged.is_file() else Path(__file__).parents[3] / "deploy" / FILES[which]  # in a checkout
    place = str(sys.prefix if prefix is None else prefix).replace("%", "%%")  # which introduces specifiers there
    return re.sub(rf"{_PREFIX}(?=/(bin|share)/)", lambda _: _quoted(place), source.read_text("utf-8"))


def _quoted(path: str) -> str:
    """As systemd reads it: a blank ends a word."""
    return path.replace("\\", "\\\\").replace(" ", "\\x20")
