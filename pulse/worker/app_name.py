"""The name of an app, ``module:app``: what can be said of it without importing anything of the user's."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

from pulse.errors import HandlerError

__all__ = ["AppError", "check_app_name", "no_module", "split_app_name"]


class AppError(HandlerError):
    """
    The app cannot be loaded.

    Attributes:
        trace: The traceback of what the user's module raised, '' when it raised nothing.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def split_app_name(name: str) -> tuple[str, str]:
    """
    Module and attribute.

    Raises:
        AppError: It is malformed.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise AppError(f"cannot load {name!r:.200}: write MODULE:APP, as in shop.jobs:app")
    return module_name, attribute


def check_app_name(name: str) -> None:
    """
    Refuse an app that certainly cannot be loaded, before any process is started for it.

    Raises:
        AppError: The name is malformed, or its module is neither here nor on the Python path.
    """
    top = split_app_name(name)[0].partition(".")[0]
    if top in sys.modules or PathFinder.find_spec(top, [os.getcwd()]) is not None:  # noqa: PTH109 - as on sys.path
        return
    if importlib.util.find_spec(top) is None:  # of a top-level module: found, not imported
        raise no_module(name, top)


def no_module(name: str, module_name: str) -> AppError:
    """The error for a module that does not exist."""
    where = os.getcwd()  # noqa: PTH109 - shown, not used
    return AppError(f"cannot load {name!r}: no module {module_name!r} here ({where}) or on the Python path")
