"""A dashboard for tests: ``pulse ui`` as a user starts it, and raw requests to it that no browser would send."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from tests.support.confidential import confidential, search
from tests.support.systems.system_kit import END_S, Whole
from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

USER: Final = "alice"
PASSWORD: Final = confidential("correct horse", "password of alice")
PHONE: Final[Any] = {"width": 360, "height": 740}
WIDE: Final[Any] = {"width": 1280, "height": 800}
# axe-core parses the colours of each element anew, which takes half of its time: they are the same few texts.
_AXE_MEMORY: Final = """(() => {
  const colors = axe.commons.color.Color.prototype, parse = colors.parseString, known = new Map();
  colors.parseString = function (text) {
    if (!known.has(text)) {
      const {r, g, b, alpha} = parse.call(this, text);
      known.set(text, {r, g, b, alpha});
    }
    return Object.assign(this, known.get(text));
  };
})()"""
_URL: Final = re.compile(r"listens on (http://\S+)")
_LINK: Final = re.compile(r"Log in, once, by: (\S+)")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def cookie(self) -> str:
        return self.headers.get("set-cookie", "").partition(";")[0]


@dataclass(slots=True)
class Dashboard:
    process: subprocess.Popen[bytes]
    said_in: Path
    url: str = ""
    cookie: str = field(default="", repr=False)

    @property
    def said(self) -> str:
        return self.said_in.read_text("utf-8", "replace")

    @property
    def netloc(self) -> str:
        return self.url.removeprefix("http://")

    def links(self) -> list[str]:
        return _LINK.findall(self.said)

    def ask(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = 5.0,
    ) -> Answer:
        """One request as it is said, with the cookie of ``log_in``."""
        connection = http.client.HTTPConnection(self.netloc, timeout=within_s)
        with contextlib.closing(connection):
            more = {"cookie": self.cookie} if self.cookie else {}
            if form is not None:
                more["content-type"] = "application/x-www-form-urlencoded"
            body = None if form is None else urlencode(form)
            connection.request(method, path, body, {**more, **(headers or {})})
            got = connection.getresponse()
            text = got.read().decode()
            search(text, f"the page {path}")
            return Answer(got.status, text, {key.lower(): value for key, value in got.getheaders()})

    def log_in(self) -> str:
        self.cookie = ""
        self.cookie = self.ask("POST", "/login", {"user": USER, "password": PASSWORD}).cookie
        confidential(self.cookie.partition("=")[2], "session of a browser")
        found = re.search(r'name="csrf" value="([^"]+)"', self.ask("GET", "/gate").text)
        assert found is not None
        return found[1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)


def axe(page: Page, *rules: str) -> list[str]:
    """What axe-core finds wrong with a page, by these rules or all."""
    from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]

    if not page.evaluate("'axe' in window"):  # it is half a megabyte
        page.evaluate(f"{AXE_SCRIPT}{_AXE_MEMORY}")
    options = json.dumps({"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})})
    found: Any = page.evaluate(f"axe.run({options}).then(found => found.violations)")
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found]


def check_looks(page: Page, picture: Callable[..., None], name: str, path: str) -> None:
    """A page, light and wide, is clean for those who cannot see it, in the dark, too, and fits a phone."""
    picture(page, f"{name}-light")
    assert axe(page) == [], path
    page.emulate_media(color_scheme="dark")  # only the colours are others
    picture(page, f"{name}-dark")
    assert axe(page, "color-contrast") == [], path
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    picture(page, f"{name}-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
    page.set_viewport_size(WIDE)


@contextmanager
def dashboard(whole: Whole, *words: str, **env: str) -> Iterator[Dashboard]:
    said_in = whole.directory / f"ui-{len(list(whole.directory.glob('ui-*')))}"
    with said_in.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "pulse.cli.main", "ui", "--listen", "127.0.0.1:0", *words],
            env={**whole.env, **env}, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
        )  # fmt: skip
    made = Dashboard(process, said_in)
    try:
        until(lambda: _URL.search(made.said) or process.poll() is not None, "the dashboard listens", END_S)
        found = _URL.search(made.said)
        assert found is not None, made.said
        made.url = found[1]
        until(lambda: made.ask("GET", "/login").status == 200, "it answers", END_S)
        yield made
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
