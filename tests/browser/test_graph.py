"""Jobs that wait, in a real browser: a graph and the pages of its jobs, changes with dependents, and signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import pulse
from tests.browser.kit import check_looks
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]


@pytest.fixture(scope="module")
def client(whole: Whole) -> Iterator[pulse.Client]:
    with pulse.Client(whole.path) as made:
        yield made


@pytest.fixture(scope="module")
def graph(client: pulse.Client) -> tuple[str, str]:
    """The first and the last of six jobs; the last one runs whatever becomes of the others."""
    first, beside = (client.submit("mark", {}, topic="nightly", delay_s=86400) for _ in range(2))
    parts = [client.submit("nap", {"seconds": 0}, topic="nightly", after=[first]) for _ in range(3)]
    last = client.submit("mark", {}, topic="nightly", after=[*parts, beside], on_failure="run")
    return str(first), str(last)


def test_each_page(visit: Callable[..., Page], graph: tuple[str, str], picture: Callable[..., None]) -> None:
    """Clean for those who cannot see it, in light and dark; and fits a phone."""
    first, last = graph
    page = visit()
    for path, name in ((f"/jobs/{first}", "parent"), (f"/jobs/{last}", "child"), (f"/jobs/{last}/graph", "graph")):
        page.goto(path)
        check_looks(page, picture, f"95-{name}", path)


def test_it_is_canceled_and_taken_back(
    visit: Callable[..., Page], client: pulse.Client, graph: tuple[str, str]
) -> None:
    """From a job to its graph, to another job there; and that with all that wait for it."""
    first, last = graph
    page = visit()
    page.goto(f"/jobs/{last}")
    assert "waits for 4 other jobs to end" in page.locator(".line").inner_text()
    assert "9999-12-" not in page.locator("main").inner_text()  # when what waits would be due
    page.click("#to-graph")
    assert "6 jobs and 7 dependencies" in page.locator("main").inner_text()
    page.locator(f".graph a[href='/jobs/{first}']").click()
    page.wait_for_url(f"**/jobs/{first}")
    page.click("#do-cancel-all")
    page.locator(".flash", has_text="5 jobs canceled").first.wait_for()
    assert client.get(last).status == "CANCELED"
    page.click("text=Undo: retry them")
    page.locator(".flash", has_text="Undone").first.wait_for()
    assert client.get(last).waiting_on == 4


def test_a_signal_is_sent(visit: Callable[..., Page], client: pulse.Client, picture: Callable[..., None]) -> None:
    """From the page of a job that waits for it; what is no JSON comes back with the reason."""
    job = client.submit("listen", {"signal": "payment"})
    client.signal(job, "address", {"city": "Bern", "street": "a long one, " * 30}, key="order 17")
    client.signal(job, "remark", "ring twice")
    until(lambda: client.get(job).awaited_signal, "it waits")
    page = visit()
    page.goto(f"/jobs/{job}")
    assert "the signal “payment” without end" in page.locator(".facts").inner_text()
    check_looks(page, picture, "96-waits", f"/jobs/{job}")
    page.click("#to-signal")
    check_looks(page, picture, "97-signal", f"/jobs/{job}/signal")
    page.fill("[name=payload]", "{")
    page.click("text=Yes, send it")
    assert "the payload is not JSON" in page.locator("[role=alert]").inner_text()
    page.fill("[name=payload]", '{"receipt": 18}')
    page.click("text=Yes, send it")
    page.locator(".flash", has_text="Signal “payment” is sent").first.wait_for()
    assert client.result(job, timeout_s=60) == {"receipt": 18}
