"""Which jobs match a call, and what a test that expected others prints."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pulse
from pulse.testing import Inline
from tests.support.checking.every import every

app: Final = pulse.App()


@app.handler("resize")
def resize(path: str, width: int = 64) -> None: ...


@app.handler("mail")
def mail(to: str) -> None:
    raise ValueError(to)


def _inline() -> Inline:
    inline = Inline(app)
    inline.submit("resize", {"path": "a.png", "width": 3})
    inline.submit("resize", {"path": "b.png"})
    inline.submit(pulse.call(mail, "x" * 80), max_attempts=1)
    return inline


def test_jobs_match_by_handler_and_some_of_their_arguments() -> None:
    inline = _inline()

    def check(row: tuple[object, int]) -> None:
        found, count = row
        assert len(found) == count  # type: ignore[arg-type]

    every(
        [
            (inline.submitted(), 3),
            (inline.submitted("resize"), 2),
            (inline.submitted(resize, path="a.png"), 1),
            (inline.submitted(resize, path=Path("b.png")), 1),
            (inline.submitted(pulse.call(resize, "a.png", width=3)), 1),
            (inline.submitted(pulse.call(resize, "a.png"), width=3), 1),
            (inline.submitted(resize, path="a.png", width=4), 0),
            (inline.submitted(resize, height=None), 0),
            (inline.submitted(mail, path="a.png"), 0),
        ],
        check,
    )


def test_without_a_match_there_is_what_was_submitted_instead() -> None:
    inline = _inline()
    assert repr(inline.submitted(resize, path="c.png")) == (
        "<no job resize(path='c.png'), but resize(path='a.png', width=3) PENDING, resize(path='b.png') PENDING, "
        f"mail(to='{'x' * 58}…) PENDING>"
    )
    assert repr(Inline(app).submitted(resize)) == "<no job resize(): nothing was submitted>"
    assert repr(inline.submitted(resize, width=3)) == "[resize(path='a.png', width=3) PENDING]"


def test_a_failed_test_shows_all_jobs_and_why_they_failed() -> None:
    inline = _inline()
    inline.run_until_idle()
    assert inline.told().splitlines() == [
        "resize(path='a.png', width=3) COMPLETED", "resize(path='b.png') COMPLETED",
        f"mail(to='{'x' * 58}…) DEAD_LETTERED: ValueError: {'x' * 80}",
    ]  # fmt: skip
    for number in range(20):
        inline.submit(resize, {"path": str(number)})
    assert inline.told().splitlines()[-1] == "… and 3 more"
    assert Inline(app).told() == "no jobs"
