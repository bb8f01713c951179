"""One system, one dashboard and one browser for all tests of this folder; each test has a session of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.kit import PASSWORD, USER, Dashboard, dashboard
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import Whole, place

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def whole(newest_server: Postgres) -> Iterator[Whole]:
    with newest_server.database() as dsn, place(dsn, PULSE_RETENTION_S="3600") as made:
        made.start()
        made.pool("--processes", "2", "--concurrency", "4", "--topic", "default", "--topic", "mail")
        yield made


@pytest.fixture(scope="module")
def ui(whole: Whole) -> Iterator[Dashboard]:
    with dashboard(whole, PULSE_AUTH_USERS=f"{USER}:{PASSWORD}") as made:
        yield made


@pytest.fixture(scope="module")
def browser(ui: Dashboard) -> Iterator[Browser]:
    """Chromium without a window. It ends before the system does: its loop lets no other run in this thread."""
    sync_api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium was found: apt-get install chromium-headless-shell")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def picture() -> Callable[..., None]:
    folder = os.environ.get("PULSE_UI_PICTURES")

    def take(page: Page, name: str, **options: Any) -> None:
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png", **options)

    return take


@pytest.fixture
def visit(browser: Browser, ui: Dashboard) -> Iterator[Callable[..., Page]]:
    """A browser of its own, logged in; at the end no page may have reported an error."""
    complaints: list[str] = []
    contexts = []

    def open_page(to: Dashboard = ui, *, log_in: bool = True, **options: Any) -> Page:
        context = browser.new_context(base_url=to.url, **options)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        if log_in:
            page.goto("/login")
            page.fill("[name=user]", USER)
            page.fill("[name=password]", PASSWORD)
            page.click("button")
            page.wait_for_url(f"{to.url}/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
