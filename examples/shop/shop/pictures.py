"""Pictures that customers upload, and their thumbnails: files in the directory PICTURES_DIR."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

from PIL import Image, UnidentifiedImageError

import pulse
from shop.app import app

WIDTHS = (200, 800)


def path_of(picture: UUID, width: int | None = None) -> Path:
    """Where a picture is, or its thumbnail."""
    name = str(picture) if width is None else f"{picture}-{width}.webp"
    return Path(os.environ["PICTURES_DIR"]) / name


@app.handler(
    "thumbnail",
    topic="pictures",
    isolate=True,
    max_memory_bytes=2 * 2**30,
    max_cpu_s=60,
    retry_on={UnidentifiedImageError: pulse.Discard},
)
def thumbnail(picture: UUID, width: int) -> str:
    """In a process of its own, with limits: nobody knows what a file from the internet does to a decoder."""
    made = path_of(picture, width)
    with Image.open(path_of(picture)) as image:
        image.thumbnail((width, width))
        unfinished = made.with_suffix(".unfinished")
        image.save(unfinished, "WEBP")
    unfinished.replace(made)  # at once, so that no request gets half of it; a second attempt does no harm
    return made.name
