"""Imports the app that a worker serves, ``module:app``, in the current directory too."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from pulse.app.app import App
from pulse.worker.app_name import AppError, no_module, split_app_name

__all__ = ["load_app"]


def load_app(name: str) -> App:
    """
    Import the app ``module:app``.

    Args:
        name: A dotted module, a colon, and the app's name in it, which may be dotted too.

    Raises:
        AppError: The name is malformed, it does not exist, importing it fails, or it cannot be served; one line that
            says which.
    """
    module_name, attribute = split_app_name(name)
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 - compared with strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - the same
    value: object = _import(name, module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise AppError(f"cannot load {name!r}: {module_name} has no {attribute!r}{_apps_of(module_name)}")
        value = getattr(value, part)
    if not isinstance(value, App):
        raise AppError(f"cannot load {name!r}: it is of type {type(value).__name__}, not a pulse.App")
    if not value.handlers:
        raise AppError(f"cannot load {name!r}: the app has no handlers; is a module that declares them not imported?")
    for handler in value.handlers.values():
        for parameter, kind in handler.provided.items():
            if kind not in value.hooks.kinds:
                wanted = getattr(kind, "__qualname__", repr(kind))
                raise AppError(
                    f"cannot load {name!r}: handler {handler.name!r}: no lifespan yields {wanted},"
                    f" which parameter {parameter!r} asks for"
                )
    return value


def _apps_of(module_name: str) -> str:
    """The apps that the module has instead, in words."""
    apps = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, App)]
    return f"; it has the app {' and '.join(repr(one) for one in apps)}" if apps else ""


def _import(name: str, module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise no_module(name, error.name) from None
        raise _failed(name, error) from error
    except BaseException as error:  # the user's module may call sys.exit, too
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> AppError:
    lines = traceback.format_exception(error)
    return AppError(f"cannot load {name!r}: {''.join(traceback.format_exception_only(error)).strip()}", "".join(lines))
