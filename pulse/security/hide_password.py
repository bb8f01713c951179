"""A password in the command line is there for everybody on the machine to see, so it does not stay there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

_OPTION: Final = "--dsn"
_VARIABLE: Final = "PULSE_DSN"  # which the option would have gone before


def hide_password() -> None:
    """
    Where ``--dsn`` has a password, go on as the same process with another command line, and the DSN in the environment.

    To be called before anything else, by a program that has that option: until then, it was seen. The environment is
    seen by the same account alone.
    """
    words = sys.argv[1:]
    kept, dsns = without_dsn(words)
    if not dsns or not sys.executable or sys.orig_argv[-len(words) :] != words:  # another program has called this one
        return
    from pulse.common.dsn import is_dsn, redact_dsn

    if is_dsn(dsns[-1]) and any(redact_dsn(dsn) != dsn for dsn in dsns):
        line = [sys.executable, *sys.orig_argv[1 : -len(words)], *kept]
        os.execve(sys.executable, line, {**os.environ, _VARIABLE: dsns[-1]})  # noqa: S606 - this program, once more


def without_dsn(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands behind a program's name without ``--dsn``, and what stood behind that, however often."""
    kept, dsns = list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == _OPTION:
            dsns.append(value if equals else next(rest, ""))
        else:
            kept.append(word)
            if word == "--":
                kept += rest
    return kept, dsns
