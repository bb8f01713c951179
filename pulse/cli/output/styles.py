"""How states are coloured on a terminal, once for all listings."""

from __future__ import annotations

from typing import Final

__all__ = ["ACTOR_STYLES", "STATUS_STYLES"]

STATUS_STYLES: Final = {
    "PENDING": "cyan",
    "RUNNING": "bold blue",
    "RETRYING": "yellow",
    "COMPLETED": "green",
    "DEAD_LETTERED": "bold red",
    "CANCELED": "dim",
}
ACTOR_STYLES: Final = {"running": "green", "starting": "yellow", "stopping": "yellow", "failed": "bold red"}
