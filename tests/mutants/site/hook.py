"""
Puts a changed source in the place of one module: an import hook, told by the environment what to do.

Uses nothing but the standard library, and is loaded by ``sitecustomize.py`` as well, in every Python process that
a test starts, so that supervisors, actors and workers have the mutant, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, SupportsIndex

# Names that begin with PULSE_ are kept from the systems under test.
MODULE: Final = "CODE_MUTANT_MODULE"
SOURCE: Final = "CODE_MUTANT_SOURCE"
SEEN_SUFFIX: Final = ".seen"  # of a file beside the source: the module was imported by somebody


class _Changed(SourceFileLoader):
    """Compiles the changed source, whatever is cached of the true one."""

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        source = Path(os.environ[SOURCE])
        source.with_suffix(SEEN_SUFFIX).touch()
        return compile(source.read_bytes(), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The true module's place, with the changed code; None for every other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == os.environ[MODULE] else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Changed(fullname, spec.origin)
        return spec


class _Finders(list[Any]):
    """The first one stays the first: pytest puts a finder of its own before all others, for the modules of plugins."""

    def insert(self, index: SupportsIndex, value: object) -> None:
        super().insert(max(1, int(index)), value)


def install() -> None:
    """Import the changed module from now on, if one is named; RuntimeError if it has been imported already."""
    if MODULE not in os.environ:
        return
    if os.environ[MODULE] in sys.modules:
        message = f"{os.environ[MODULE]} was imported before it could be changed"
        raise RuntimeError(message)
    sys.meta_path = _Finders([_Finder(), *sys.meta_path])
