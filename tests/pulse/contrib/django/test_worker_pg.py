"""The module that handler processes load."""

from __future__ import annotations

import pytest
from django.test import override_settings  # type: ignore[import-untyped]

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
import pulse.contrib.django
from pulse.contrib.django import worker
from pulse.errors import ConfigError
from tests.pulse.sql.connections import peer
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """Django is tested, not PostgreSQL."""
    return newest_server


async def test_what_was_open_when_it_was_loaded_is_closed(dsn: str) -> None:
    """A process that is forked from there must not share it."""
    async with peer("Django", dsn) as mine:
        await mine.execute("SELECT 1")
        assert mine.connection.connection is not None
        assert worker.load() is pulse.contrib.django.app
        assert mine.connection.connection is None


def test_wrong_settings_are_refused() -> None:
    """By `pulse worker pulse.contrib.django.worker:app`, which does not run the checks."""
    with override_settings(PULSE={"USER": 1}), pytest.raises(ConfigError, match="PULSE"):
        worker.load()
