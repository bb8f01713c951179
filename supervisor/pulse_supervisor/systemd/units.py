"""The systemd files for this installation."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

FILES: Final = {  # option: path below deploy/
    "server": "pulse-supervisor.service",
    "worker": "pulse-worker@.service",
    "sysusers": "sysusers.d/pulse.conf",
    "tmpfiles": "tmpfiles.d/pulse.conf",
}
_PREFIX: Final = "/opt/pulse"  # the prefix in these files


def unit_text(which: str, prefix: Path | None = None) -> str:
    """
    A unit, or another file, with the paths of an installation instead of /opt/pulse.

    Args:
        which: A key of FILES.
        prefix: Prefix of the installation, by default ``sys.prefix``.
    """
    packaged = files("pulse_supervisor") / "deploy" / FILES[which]
    source = packaged if packaged.is_file() else Path(__file__).parents[3] / "deploy" / FILES[which]  # in a checkout
    place = str(sys.prefix if prefix is None else prefix).replace("%", "%%")  # % introduces specifiers there
    return re.sub(rf"{_PREFIX}(?=/(bin|share)/)", lambda _: _quoted(place), source.read_text("utf-8"))


def _quoted(path: str) -> str:
    """Quoted for systemd, where a blank ends a word."""
    return path.replace("\\", "\\\\").replace(" ", "\\x20")
