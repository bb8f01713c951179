"""Imports the app that a worker serves, ``module:app``, in the current directory too."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from pulse.app.app import App
from pulse.errors import HandlerError

__all__ = ["AppError", "load_app"]


class AppError(HandlerError):
    """
    The app cannot be loaded.

    Attributes:
        trace: The traceback of what the user's module raised, '' when it raised nothing.
    """

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def load_app(name: str) -> App:
    """
    Import the app ``module:app``.

    Args:
        name: A dotted module, a colon, and the app's name in it, which may be dotted too.

    Raises:
        AppError: The name is malformed, it does not exist, importing it fails, or it has no handlers; one line that
        says
            which.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise AppError(f"cannot load {name!r}: write MODULE:APP, as in shop.jobs:app")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 - compared with strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - the same
    value: object = _import(name, module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise AppError(f"cannot load {name!r}: {module_name} has no {attribute!r}")
        value = getattr(value, part)
    if not isinstance(value, App):
        raise AppError(f"cannot load {name!r}: it is of type {type(value).__name__}, not a pulse.App")
    if not value.handlers:
        raise AppError(f"cannot load {name!r}: the app has no handlers; is a module that declares them not imported?")
    return value


def _import(name: str, module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            where = os.getcwd()  # noqa: PTH109 - shown, not used
            raise AppError(
                f"cannot load {name!r}: no module {error.name!r} here ({where}) or on the Python path"
            ) from None
        raise _failed(name, error) from error
    except BaseException as error:  # the user's module may call sys.exit, too
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> AppError:
    lines = traceback.format_exception(error)
    return AppError(f"cannot load {name!r}: {''.join(traceback.format_exception_only(error)).strip()}", "".join(lines))
