"""The public surface: what `import pulse` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pulse


def test_every_public_name_is_there() -> None:
    """And ``dir`` shows no other, such as what the module itself imports."""
    assert pulse.__all__ == sorted(pulse.__all__)
    assert dir(pulse) == sorted(["__version__", *pulse.__all__])
    for name in dir(pulse):
        assert getattr(pulse, name) is not None


def test_a_public_module_is_that_module() -> None:
    assert pulse.__getattr__("sql") is sys.modules["pulse.sql"]


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'pulse' has no attribute 'nonsense'"):
        pulse.nonsense  # noqa: B018 - asking is the test


def test_declaring_handlers_is_light() -> None:
    code = (
        "import sys, pulse\n"
        "app = pulse.App()\n"
        "@app.handler('x')\n"
        "def x(ctx: pulse.Context) -> None: raise pulse.Discard('x')\n"
        "heavy = {'anyio', 'asyncio', 'asyncpg', 'click', 'msgpack', 'msgspec', 'structlog', 'trio'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == ([], "")


@pytest.mark.rest
def test_every_module_can_be_imported() -> None:
    """With warnings as errors: what a newer Python deprecates is seen by its first user."""
    code = (
        "import django.conf, importlib, pkgutil, pulse, pulse_actors, pulse_supervisor\n"
        "django.conf.settings.configure()\n"  # as in the programs that import what is for Django
        "for package in (pulse, pulse_actors, pulse_supervisor):\n"
        "    for one in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not one.name.endswith('__main__'):\n"
        "            importlib.import_module(one.name)\n"
        "            print(one.name)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"pulse.worker.service", "pulse_actors.dispatcher.main", "pulse_supervisor.main"} <= {*done.stdout.split()}
