"""One system, dashboard and browser for all tests of a module; each test has a session of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.browser.kit import PASSWORD, USER, WIDE, Dashboard, dashboard
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import Whole, place

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# What moves costs frames.
LOOK: Final[Any] = {"viewport": WIDE, "color_scheme": "light", "reduced_motion": "reduce"}


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


class Opener:
    """Opens pages, and keeps what they complain of."""

    def __init__(self, browser: Browser, ui: Dashboard) -> None:
        self._browser = browser
        self._ui = ui
        self._complaints: list[str] = []
        self._others: list[BrowserContext] = []
        self._usual = self._new(ui)

    def open(self, to: Dashboard | None = None, *, log_in: bool = True, **options: Any) -> Page:
        """A page with a new session; unless it differs, the one that tests have in turn: it starts no process."""
        page = self._usual
        if to is not None or not log_in or options:
            page = self._new(to or self._ui, **options)
            self._others.append(page.context)
        if log_in:
            assert page.request.post("/login", form={"user": USER, "password": PASSWORD}).ok
            page.goto("/")
            assert page.locator("button[title='Log out']").count() == 1
        return page

    def _new(self, to: Dashboard, **options: Any) -> Page:
        context = self._browser.new_context(base_url=to.url, **LOOK, **options)
        context.set_default_timeout(10_000)
        said = self._complaints.append
        page = context.new_page()
        page.on("pageerror", lambda error: said(str(error)))
        page.on("dialog", lambda dialog: said(f"a dialog: {dialog.message}"))
        page.on("console", lambda line: said(line.text) if "Content Security" in line.text else None)
        return page

    def end(self) -> list[str]:
        """Leave nothing of a test behind; what its pages have complained of."""
        while self._others:
            self._others.pop().close()
        self._usual.unroute_all()
        self._usual.goto("about:blank")
        self._usual.context.clear_cookies()
        self._usual.set_viewport_size(LOOK["viewport"])
        self._usual.emulate_media(color_scheme=LOOK["color_scheme"])
        complaints = self._complaints.copy()
        self._complaints.clear()
        return complaints


@pytest.fixture(scope="module")
def opener(browser: Browser, ui: Dashboard) -> Opener:
    return Opener(browser, ui)


@pytest.fixture
def visit(opener: Opener) -> Iterator[Callable[..., Page]]:
    """Opens a page, logged in; at the end no page may have reported an error."""
    yield opener.open
    assert opener.end() == []
