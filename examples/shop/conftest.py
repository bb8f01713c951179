"""What the tests share: a database, a place for pictures, and what stands for the services of others."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from shop.database import make_tables
from shop.stand_in import StandIn


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """A database beside that of DATABASE_URL, made for this run."""
    url = make_url(os.environ["DATABASE_URL"])
    name = f"{url.database}_test_{os.environ.get('PYTEST_XDIST_WORKER', 'all')}"
    with closing(psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)) as connection:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield url.set(database=name).render_as_string(hide_password=False)
        connection.execute(drop)


@pytest.fixture(scope="session")
def stand_in() -> Iterator[StandIn]:
    """Takes e-mails, and what Sentry gets."""
    with StandIn() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="session", autouse=True)
def environment(database: str, stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The settings of the shop, for the tests and for the worker of pulse_server, which starts later."""
    with pytest.MonkeyPatch.context() as patch:
        here = f"127.0.0.1:{stand_in.server_port}"
        patch.setenv("DATABASE_URL", database)
        patch.setenv("MAIL_URL", f"http://{here}")
        patch.setenv("SENTRY_DSN", f"http://key@{here}/1")
        patch.setenv("PICTURES_DIR", str(tmp_path_factory.mktemp("pictures")))
        subprocess.run(["pulse", "migrate"], env={**os.environ, "PULSE_DSN": database}, check=True)
        make_tables()
        yield


@pytest.fixture(scope="session")
def pulse_dsn(database: str) -> str:
    """The database that pulse_server uses: the shop's, so that transactions can have both in them."""
    return database
