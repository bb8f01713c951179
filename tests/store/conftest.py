"""Tests of the store run on each PostgreSQL that is found: the wheel's and the system's."""

from __future__ import annotations

import os

import pytest

from tests.support import postgres
from tests.support.postgres import Installation, Postgres, Servers


def _choices() -> list[Installation | None]:
    """The first and the last: what users get, and the oldest that is here."""
    if postgres.GIVEN_DSN in os.environ:
        return [None]
    found = postgres.installations()
    return [*found[:1], *found[1:][-1:]]


def _label(choice: object) -> str:
    return f"pg{choice.major}" if isinstance(choice, Installation) else "given"


@pytest.fixture(scope="session", params=_choices(), ids=_label)
def server(request: pytest.FixtureRequest, servers: Servers) -> Postgres:
    """One server after the other."""
    choice: Installation | None = request.param
    return servers.get(choice)
