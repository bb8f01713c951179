"""Removes a password from the command line, which every account of the machine can see."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

_OPTION: Final = "--dsn"
_VARIABLE: Final = "PULSE_DSN"  # the option would have won over it


def hide_password() -> None:
    """
    If ``--dsn`` has a password, exec the same program with the DSN in the environment instead.

    Call it before anything else, in programs with that option: until then the password is visible. Only the same
    account can see the environment.
    """
    words = sys.argv[1:]
    kept, dsns = without_dsn(words)
    if not dsns or not sys.executable or sys.orig_argv[-len(words) :] != words:  # called by another program
        return
    from pulse.common.dsn import is_dsn, redact_dsn

    if is_dsn(dsns[-1]) and any(redact_dsn(dsn) != dsn for dsn in dsns):
        line = [sys.executable, *sys.orig_argv[1 : -len(words)], *kept]
        os.execve(sys.executable, line, {**os.environ, _VARIABLE: dsns[-1]})  # noqa: S606 - this program, once more


def without_dsn(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without ``--dsn``, and the values of all ``--dsn``."""
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
