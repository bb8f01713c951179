"""
The app as handler processes load it: Django is set up, and handlers get connections that work.

``manage.py pulse_worker`` starts them; so does ``pulse worker pulse.contrib.django.worker:app``, with
DJANGO_SETTINGS_MODULE in the environment.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import django  # type: ignore[import-untyped]
from asgiref.sync import sync_to_async
from django.apps import apps  # type: ignore[import-untyped]
from django.db import close_old_connections  # type: ignore[import-untyped]

from pulse.app.app import App
from pulse.app.handler import Handler
from pulse.app.schedule import Declared
from pulse.contrib.django.settings import close_connections, project_settings

__all__ = ["app"]


class ProjectApp(App):
    """
    The handlers of a project, each called as Django calls a view: connections that are broken or too old are closed
    before and after it.
    """

    def __init__(self, registered: App) -> None:
        super().__init__()
        self._wrapped = {name: _with_connections(one) for name, one in registered.handlers.items()}
        self._registered = registered

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The registered handlers, with that around them."""
        return MappingProxyType(self._wrapped)

    @property
    def schedules(self) -> Mapping[str, Declared]:
        """The registered schedules."""
        return self._registered.schedules


def _with_connections(handler: Handler) -> Handler:
    function = handler.function

    @functools.wraps(function)
    async def call_async(**arguments: Any) -> object:
        await _close_in_thread()
        try:
            return await function(**arguments)
        finally:
            await _close_in_thread()

    @functools.wraps(function)
    def call_plain(**arguments: Any) -> object:
        close_old_connections()
        try:
            return function(**arguments)
        finally:
            close_old_connections()

    return replace(handler, function=call_async if handler.is_async else call_plain)


async def _close_in_thread() -> None:
    """The connections of async code: Django has them in a thread beside asyncio; on trio it has none."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    await sync_to_async(_close_old)()


def _close_old() -> None:
    close_old_connections()


def load() -> App:
    if not apps.ready:
        django.setup()
    from pulse.contrib.django import app as registered

    # What modules have opened when they were imported: processes that are forked from here must not share it.
    close_connections()
    project_settings()  # raises if they are wrong
    return ProjectApp(registered)


app = load()
