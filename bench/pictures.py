"""
`python -m bench.pictures DIRECTORY`: pictures of every page of the dashboard, with 18,000 jobs of a shop.

A system of its own runs the jobs of `bench.shop_app` for a minute or two: some fail, some are to run tomorrow, nobody
serves one topic, and one name is misspelled. Meanwhile a browser without a window (Chromium, playwright and Pillow are
needed) takes each page: light and dark on a wide screen, and light on a telephone. Pictures are WebP without loss, a
third of a PNG.
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pulse
from bench.dashboard import runtime_dir, served
from pulse.ops.demo.server import running_server
from pulse.protocol.answers import StatusAnswer, read

if TYPE_CHECKING:
    from playwright.sync_api import Browser

APP: Final = "bench.shop_app:app"
JOBS: Final = 18_000
TOMORROW_S: Final = 86_400.0
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
WIDE: Final = {"width": 1400, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
TEMPLATES: Final = ("welcome", "receipt", "shipped", "newsletter")
DEADLINE_S: Final = 300.0
FIRST: Final = "overview"  # on a telephone its first screen is the answer
A_SECOND: Final = 200  # jobs, so that charts show a system at work
BATCH: Final = 20
# Where this project and its system lie is nobody's business.
HIDE: Final = """([path, shown]) => {
    document.body.addEventListener("htmx:beforeRequest", (event) => event.preventDefault());
    document.body.addEventListener("htmx:beforeSwap", (event) => { event.detail.shouldSwap = false; });
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const tidy = (text) => text.replaceAll(path, shown).replace(/\\/tmp\\/pulse-demo-\\w+/g, "/srv/pulse");
    while (walk.nextNode()) walk.currentNode.data = tidy(walk.currentNode.data);
}"""


def jobs(number: int) -> Iterator[pulse.NewJob]:
    """What a shop submits within an hour or so."""
    chance = random.Random(1)
    for one in range(number):
        to = f"customer{one}@mail.example"
        match chance.choices(("mail", "reminder", "image", "payment"), (55, 5, 30, 10))[0]:
            case "mail":
                yield {"name": "send-mail", "args": {"to": to, "template": chance.choice(TEMPLATES)}}
            case "reminder":
                yield {"name": "send-mail", "args": {"to": to, "template": "reminder"}, "delay_s": TOMORROW_S}
            case "image":
                width = chance.choice((200, 400, 1200))
                yield {"name": "thumbnail", "args": {"path": f"uploads/{one}.jpg", "width": width}}
            case _:
                yield {"name": "charge", "args": {"order": one, "cents": chance.randrange(500, 20_000)}}


def begin(client: pulse.Client) -> dict[str, UUID]:
    """What is not quite right in the shop; ids of what has pages of interest."""
    schedule = client.schedules_create("report", {"month": "November"}, cron="0 6 1 * *", timezone="Europe/Berlin")
    client.schedules_create("send-mail", {"to": "staff@shop.example", "template": "digest"}, cron="* * * * *")
    report = client.submit("report", {"month": "October"})
    client.submit_many([{"name": "invoice", "topic": "invoices", "args": {"order": one}} for one in range(40)])
    client.submit_many(
        [{"name": "sned-mail", "topic": "mail", "args": {"to": f"{one}@mail.example"}} for one in range(25)]
    )
    client.pause("payments", "the bank is updating its systems")
    return {"running": report, "schedule": schedule.id}


@contextmanager
def busy(client: pulse.Client, number: int) -> Iterator[None]:
    """Goes on once *number* jobs were submitted; a thread submits more meanwhile."""
    enough, is_over = threading.Event(), threading.Event()

    def submit() -> None:
        some = jobs(10 * number)
        for done in range(0, 10 * number, BATCH):
            client.submit_many(list(itertools.islice(some, BATCH)))
            if done >= number:
                enough.set()
            if is_over.wait(BATCH / A_SECOND):
                return

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        assert enough.wait(DEADLINE_S)
        yield
    finally:
        is_over.set()
        thread.join()


def is_ready(client: pulse.Client) -> bool:
    """Whether the server has found the misspelled name."""
    return "unhandled" in {one.id for one in read(StatusAnswer, client.request("status")).findings or ()}


def pages(found: dict[str, UUID]) -> dict[str, str]:
    """Name of the picture -> path."""
    return {
        "overview": "/",
        "jobs": "/jobs",
        "job": f"/jobs/{found['job']}",
        "running": f"/jobs/{found['running']}",
        "dead": "/dead",
        "topics": "/topics",
        "topic": "/topics/view?topic=mail",
        "schedules": "/schedules",
        "schedule": f"/schedules/{found['schedule']}",
        "workers": "/workers",
        "actors": "/actors",
        "gate": "/gate",
        "audit": "/audit",
    }


def take(browser: Browser, netloc: str, cookie: str, paths: dict[str, str]) -> dict[str, bytes]:
    """A picture of each page, in each of three ways."""
    taken: dict[str, bytes] = {}
    name, _, value = cookie.partition("=")
    kinds: tuple[tuple[str, dict[str, int], str], ...] = (
        ("", WIDE, "light"),
        ("-dark", WIDE, "dark"),
        ("-phone", PHONE, "light"),
    )
    for suffix, size, scheme in kinds:
        options: Any = {"viewport": size, "color_scheme": scheme, "base_url": f"http://{netloc}"}
        context = browser.new_context(**options)
        context.add_cookies([{"name": name, "value": value, "url": f"http://{netloc}"}])
        page = context.new_page()
        for picture, path in paths.items():
            page.goto(path)
            page.evaluate(HIDE, [str(Path(__file__).parents[1]), "/srv/shop"])
            taken[f"{picture}{suffix}"] = page.screenshot(full_page=suffix == "-phone" and picture != FIRST)
        context.close()
    return taken


def keep(pictures: dict[str, bytes], directory: Path) -> None:
    """Write them, small."""
    from PIL import Image

    for name, png in pictures.items():
        Image.open(io.BytesIO(png)).convert("RGB").save(directory / f"{name}.webp", lossless=True, method=6)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.pictures", description=__doc__)
    parser.add_argument("directory", type=Path, help="where they go")
    parser.add_argument("--jobs", type=int, default=JOBS, help="default: %(default)s")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    options.directory.mkdir(parents=True, exist_ok=True)
    with running_server(APP, {}, processes=2, concurrency=10) as client:
        found = begin(client)
        database = read(StatusAnswer, client.request("status")).database
        with (
            served(runtime_dir("" if database is None else database.dsn)) as (netloc, cookie),
            sync_playwright() as playwright,
            busy(client, options.jobs),
        ):
            until_s = time.monotonic() + DEADLINE_S
            while not is_ready(client) and time.monotonic() < until_s:
                time.sleep(1)
            found["job"] = client.jobs(status="DEAD_LETTERED", name="thumbnail", limit=1).jobs[0].id
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            pictures = take(browser, netloc, cookie, pages(found))
            browser.close()
    keep(pictures, options.directory)


if __name__ == "__main__":
    main()
