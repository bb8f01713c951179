"""Every code block of the documentation runs, in the order of its page, on a system that all pages share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg.conninfo
import pytest

import pulse
from tests.docs.blocks import ELSEWHERE, LANGUAGES, Block, blocks, name_of, pages, parsed
from tests.docs.running import Page, importable
from tests.support.checking.every import every
from tests.support.servers import postgres
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import Whole, place
from tools import tutorial

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient]

OWN_SYSTEM: Final = {
    "docs/operating.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
}  # they start one from nothing, as a reader does
IN_DATABASE: Final = {
    "docs/backups.md",
    "docs/frameworks.md",
}  # their programs find it as libpq and asyncpg do, in the environment
TO_RUN: Final = [page for page in pages() if any(block.reason is None for block in blocks(page))]


@pytest.fixture(scope="module")
def whole(newest_server: Postgres) -> Iterator[Whole]:
    """A system that runs, without workers: pages start their own."""
    with newest_server.database() as dsn, place(dsn) as system:
        system.start()
        yield system


@pytest.mark.parametrize("page", TO_RUN, ids=name_of)
@pytest.mark.rest
@pytest.mark.timeout(300)
def test_blocks_run(page: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    with short_directory() as directory, contextlib.ExitStack() as stack:
        directory.chmod(0o711)  # as root, the embedded PostgreSQL runs as another user, who has to get through
        runtime_dir = directory / "run" if name_of(page) in OWN_SYSTEM else whole.runtime_dir
        env = _environment(whole, directory, runtime_dir)
        if name_of(page) in IN_DATABASE:
            env |= _of_libpq(whole.dsn)
        monkeypatch.chdir(directory)
        monkeypatch.setenv("PULSE_RUNTIME_DIR", str(runtime_dir))
        stack.enter_context(importable(directory))
        stack.callback(_tidy, whole)
        run = stack.enter_context(contextlib.closing(Page(env, directory, whole.dsn)))
        for example in parsed(page, run.evaluators).examples():
            example.evaluate()


def _tidy(whole: Whole) -> None:
    with pulse.Client(whole.path) as client:
        for schedule in client.schedules_list().schedules:
            client.schedules_delete(schedule.id)
        for status in ("PENDING", "RETRYING"):
            while page := client.jobs(status=status, limit=1000).jobs:
                client.cancel(*(job.id for job in page))


def _environment(whole: Whole, directory: Path, runtime_dir: Path) -> dict[str, str]:
    kept = {key: value for key, value in whole.env.items() if not key.startswith(("PULSE_LOG", "COLUMNS", "LINES"))}
    return {
        **kept, "HOME": str(directory), "NO_COLOR": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(_programs()), os.environ["PATH"]]),
        "PULSE_RUNTIME_DIR": str(runtime_dir), "PULSE_STATE_DIR": str(directory / "state"),
        "TERM": "xterm-256color", "DATABASE_URL": whole.dsn,
    }  # fmt: skip


def _of_libpq(dsn: str) -> dict[str, str]:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"PGDATABASE": "dbname", "PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password"}
    return {variable: str(parts[name]) for variable, name in names.items() if parts.get(name)}


def _programs() -> Path:
    return postgres.installations()[0].directory


def test_the_tutorial_shows_the_files_of_the_shop() -> None:
    """As they are, and all of them; `python -m tools.tutorial` writes them into the page."""
    page = tutorial.PAGE.read_text("utf-8")
    assert page == tutorial.filled(page)
    there = {path.relative_to(tutorial.SHOP).as_posix() for path in tutorial.SHOP.rglob("*.*") if path.suffix != ".pyc"}
    assert {*tutorial.shown()} == there


def test_every_block_runs_or_says_why_not() -> None:
    def check(block: Block) -> None:
        assert not (block.language == "text" and block.source.startswith("$ ")), "that is a console"
        if block.reason is None:
            assert block.language in {*LANGUAGES, *ELSEWHERE}, "nobody runs it; write why above it"
        else:
            assert len(block.reason.split()) > 2, "a reason has more words"

    every((block for page in pages() for block in blocks(page)), check)
