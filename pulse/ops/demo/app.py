"""Work for the demonstration: checksums of the files of this Python's standard library."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

import pulse

SLICE_S = 0.05  # after each slice of the long job, so that a person can watch it

app = pulse.App()


def library_files(package: str) -> list[Path]:
    """Source files of *package* in the standard library, '' for all of it, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    found = (Path(at, name) for at, _, names in os.walk(root / package) if "site-packages" not in at for name in names)
    return sorted(path for path in found if path.suffix == ".py")


def read_into(add: Callable[[bytes], object], files: Sequence[Path]) -> None:
    """Add the contents of *files* to a checksum."""
    for path in files:
        add(path.read_bytes())


@app.handler("checksum")
def checksum(package: str) -> dict[str, object]:
    """SHA-256 over one package: plain blocking code, in a thread."""
    digest = hashlib.sha256()
    files = library_files(package)
    read_into(digest.update, files)
    return {"files": len(files), "sha256": digest.hexdigest()[:16]}


@app.handler("checksum-library")
async def checksum_library(slices: int, ctx: pulse.Context) -> dict[str, object]:
    """SHA-256 over the whole library in *slices* parts, telling how far it is after each."""
    digest = hashlib.sha256()
    files = library_files("")
    for number in range(slices):
        await anyio.to_thread.run_sync(read_into, digest.update, files[number::slices])
        await ctx.progress((number + 1) / slices, f"{number + 1} of {slices} parts")
        await anyio.sleep(SLICE_S)
    return {"files": len(files), "sha256": digest.hexdigest()[:16]}
