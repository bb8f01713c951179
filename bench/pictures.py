"""
`python -m bench.pictures DIRECTORY`: pictures of every page of the dashboard, with 18,000 jobs of a shop.

A system of its own runs the jobs of `bench.shop_app` for a minute or two: some fail, some are to run tomorrow, nobody
serves one topic, and one name is misspelled. Then a browser without a window (Chromium and playwright are needed) takes
each page: light and dark on a wide screen, and light on a telephone. Pictures are WebP without loss, a third of a PNG.
"""

from __future__ import annotations

import argparse
import base64
import random
import shutil
import time
from collections.abc import Iterator
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
CHARTED_S: Final = 90.0  # of a steady load, so that charts have something to show
A_SECOND: Final = 25
# A PNG in, a WebP out: the browser has the encoder.
AS_WEBP: Final = """async (png) => {
    const image = await createImageBitmap(await (await fetch("data:image/png;base64," + png)).blob());
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 1).split(",")[1];
}"""
# Where this project lies is nobody's business.
HIDE: Final = """([path, shown]) => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(path, shown);
}"""
FEW: Final = 4  # jobs that run: the rest of what was submitted has to wait


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


def fill(client: pulse.Client, number: int) -> dict[str, UUID]:
    """Submit all, and wait until most is done; ids of jobs that have pages of interest."""
    schedule = client.schedules_create("report", {"month": "November"}, cron="0 6 1 * *", timezone="Europe/Berlin")
    client.schedules_create("send-mail", {"to": "staff@shop.example", "template": "digest"}, cron="*/15 * * * *")
    report = client.submit("report", {"month": "October"})
    some = list(jobs(number))
    for first in range(0, number, 1000):
        client.submit_many(some[first : first + 1000])
    client.submit_many([{"name": "invoice", "topic": "invoices", "args": {"order": one}} for one in range(40)])
    client.submit_many(
        [{"name": "sned-mail", "topic": "mail", "args": {"to": f"{one}@mail.example"}} for one in range(25)]
    )
    client.pause("payments", "the bank is updating its systems")
    client.submit_many([{"name": "charge", "args": {"order": one, "cents": 1}} for one in range(60)])
    until_s = time.monotonic() + DEADLINE_S
    while not is_calm(client) and time.monotonic() < until_s:
        time.sleep(1)
    until_s = time.monotonic() + CHARTED_S
    more = jobs(JOBS)
    while time.monotonic() < until_s:
        client.submit_many([next(more) for _ in range(A_SECOND)])
        time.sleep(1)
    dead = client.jobs(status="DEAD_LETTERED", name="thumbnail", limit=1).jobs
    return {"job": dead[0].id, "running": report, "schedule": schedule.id}


def is_calm(client: pulse.Client) -> bool:
    """Whether few jobs run, and the server has found the misspelled name."""
    status = read(StatusAnswer, client.request("status"))
    found = {one.id for one in status.findings or ()}
    return (status.jobs or {}).get("RUNNING", 0) <= FEW and "unhandled" in found


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


def take(browser: Browser, netloc: str, cookie: str, paths: dict[str, str], directory: Path) -> None:
    """A picture of each page, in each of three ways."""
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
        page, encoder = context.new_page(), context.new_page()
        for picture, path in paths.items():
            page.goto(path)
            page.evaluate(HIDE, [str(Path(__file__).parents[1]), "/srv/shop"])
            png = base64.b64encode(page.screenshot(full_page=suffix == "-phone")).decode()
            (directory / f"{picture}{suffix}.webp").write_bytes(base64.b64decode(encoder.evaluate(AS_WEBP, png)))
        context.close()


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
        found = fill(client, options.jobs)
        database = read(StatusAnswer, client.request("status")).database
        with (
            served(runtime_dir("" if database is None else database.dsn)) as (netloc, cookie),
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            take(browser, netloc, cookie, pages(found), options.directory)
            browser.close()


if __name__ == "__main__":
    main()
