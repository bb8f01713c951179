"""Tables: what is shown in which width; times, numbers and foreign text in words."""

from __future__ import annotations

import io
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulse.cli.output.render import Cell, Column, Screen, Table, fit, foreign, plain_table
from pulse.common.text import (
    ago,
    count,
    cut,
    cut_middle,
    duration,
    headline,
    iso,
    one_line,
    printable,
    shell_word,
    width_of,
)

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
COLUMNS = (
    Column("id"), Column("name", least=4), Column("tries", right=True, leave_out=2),
    Column("error", least=6, leave_out=1),
)  # fmt: skip


def table(*rows: tuple[str, ...]) -> Table:
    return Table(COLUMNS, [[Cell(text) for text in row] for row in rows])


SMALL = table(("a1", "resize", "1/5", ""), ("b2", "crunch numbers", "12/20", "ValueError: no such file"))


def test_piped_text_is_aligned_and_whole() -> None:
    """Without a width nothing is cut, columns are aligned, numbers to the right; else the longest is cut."""
    lines = [
        "id  name            tries  error",
        "a1  resize            1/5",
        "b2  crunch numbers  12/20  ValueError: no such file",
    ]
    assert plain_table(SMALL, None) == lines
    assert plain_table(SMALL, 41) == [*lines[:2], "b2  crunch numbers  12/20  ValueError: n…"]
    assert plain_table(table(("a1", "日本", "1/5", ""), ("b2", "abcd", "1/5", "")), None)[1:] == [
        "a1  日本    1/5",
        "b2  abcd    1/5",
    ]


def test_columns_are_left_out_in_their_order() -> None:
    assert list(fit(SMALL, 23) or {}) == [0, 1, 2, 3]
    assert list(fit(SMALL, 22) or {}) == [0, 1, 3]
    assert list(fit(SMALL, 15) or {}) == [0, 1]
    assert fit(SMALL, 7) is None


def test_rows_become_blocks_where_nothing_else_fits() -> None:
    wide = table((ID, "resize", "1/5", ""), (ID, "crunch numbers", "", "ValueError: no such file"))
    assert plain_table(wide, 40) == [
        ID, "  name   resize", "  tries  1/5", ID, "  name   crunch numbers", "  error  ValueError: no such file",
    ]  # fmt: skip
    assert plain_table(wide, 20)[-1] == "  error  ValueError…"


@given(
    st.lists(st.tuples(*[st.text(st.characters(codec="utf-8"), max_size=30)] * 4), max_size=5),
    st.integers(min_value=20, max_value=120),
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    shown = Table(
        COLUMNS, [[Cell(f"{index:08}"), *(foreign(text) for text in row[1:])] for index, row in enumerate(rows)]
    )
    assert all(width_of(line) <= width for line in plain_table(shown, width))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("env", "is_styled"), [
    ({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ({"TERM": "dumb"}, False), ({}, False),
])  # fmt: skip
def test_styles_need_a_terminal_that_wants_them(
    env: dict[str, str], is_styled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    screen = Screen(stream, env)
    screen.table(SMALL)
    screen.lines([[Cell("bad", "bold red")]])
    assert ("\x1b[" in stream.getvalue()) is is_styled
    assert "bad" in stream.getvalue()


def test_a_pipe_gets_no_styles() -> None:
    stream = io.StringIO()
    screen = Screen(stream, {"TERM": "xterm", "COLUMNS": "20"})
    screen.lines([[Cell("x" * 100, "red"), Cell("y", "bold")]])
    assert (stream.getvalue(), screen.width) == ("x" * 100 + "y\n", None)
    terminal = Terminal()
    screen = Screen(terminal, {"TERM": "xterm"})
    screen.table(table(("a", "[red]x[/red]", "", "[bold]")))
    screen.lines([[Cell("[/nonsense] :smile: 42")]])
    for text in ("[red]x[/red]", "[bold]", "[/nonsense] :smile: 42"):
        assert text in terminal.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "1970-01-01T00:00:00Z"), (1_900_000_000.0, "2030-03-17T17:46:40Z"),
    (1_900_000_000.25, "2030-03-17T17:46:40.250000Z"), (1_763_632_800.000001, "2025-11-20T10:00:00.000001Z"),
    (-1.0, "1969-12-31T23:59:59Z"),
])  # fmt: skip
def test_iso_is_utc_to_the_microsecond(seconds: float, text: str) -> None:
    assert iso(seconds) == text


def test_iso_refuses_what_no_calendar_has() -> None:
    with pytest.raises(OverflowError, match="out of range"):
        iso(1e12)


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 s"), (0.0004, "1 ms"), (0.0871, "87 ms"), (0.5, "0.5 s"), (3.0, "3 s"), (9.94, "9.9 s"), (42.9, "42 s"),
    (119.9, "119 s"), (120.0, "2 min"), (7_199.0, "119 min"), (7_200.0, "2 h"), (172_799.0, "47 h"), (172_800.0, "2 d"),
    (86_400.0 * 400, "400 d"), (-5.0, "0 s"),
])  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    """A duration has the unit of which there are at least two, and never rounds up."""
    assert duration(seconds) == text


def test_ago_and_count() -> None:
    for moment_s, text in [(1000.0, "now"), (999.8, "now"), (940.0, "60 s ago"), (1300.0, "in 5 min")]:
        assert ago(moment_s, 1000.0) == text
    assert (count(1, "job"), count(0, "job"), count(12000, "job")) == ("1 job", "0 jobs", "12,000 jobs")
    assert count(2, "crash", "crashes") == "2 crashes"


@pytest.mark.parametrize(("text", "shown"), [
    ("plain", "plain"), ("größe 日本", "größe 日本"), ("\x1b[31mred", r"\x1b[31mred"), ("a\nb", r"a\nb"),
    ("\u202egnp.exe", r"\u202egnp.exe"), ("\udc80", r"\udc80"), ("\x00", r"\x00"),
])  # fmt: skip
def test_printable_escapes_what_acts_on_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines() -> None:
    assert printable("a\r\nb\tc\rd\x07", keep_lines=True) == "a\nb    c\\rd\\x07"
    assert one_line("ValueError:\n  no\t file ") == "ValueError: no file"


@pytest.mark.parametrize(("text", "width", "shown"), [
    ("short", 5, "short"), ("longer", 5, "long…"), ("日本語", 6, "日本語"), ("日本語", 5, "日本…"),
    ("日本語", 4, "日…"), ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
    ("abc", 1, "…"), ("abc", 0, ""), ("", 0, ""),
])  # fmt: skip
def test_cut(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


@pytest.mark.parametrize(("error", "line"), [
    ("ValueError: no\nTraceback (most recent call last):\nValueError: no", "ValueError: no"),
    ('\nTraceback (most recent call last):\n  File "a"\nValueError: no\n\n', "ValueError: no"),
    ("timed out\nmore", "timed out"), ("", ""),
])  # fmt: skip
def test_the_headline_of_an_error(error: str, line: str) -> None:
    assert headline(error) == line


def test_the_middle_of_a_long_text_is_left_out() -> None:
    """Whole lines are kept at both ends, and what is missing is counted exactly."""
    text = "\n".join(f"line {number:03}" for number in range(300))
    assert cut_middle(text, len(text)) == text
    shown = cut_middle(text, 500)
    first, note, last = shown.partition("\n… ")[0], shown.partition("\n… ")[2].split("\n")[0], shown.split("…\n")[1]
    assert 400 < len(shown) <= 500
    assert text.startswith(first + "\n")
    assert text.endswith("\n" + last)
    assert note == f"{len(text) - len(first) - len(last):,} bytes left out …"


@given(st.text(), st.integers(0, 200))
def test_a_cut_text_takes_no_more_than_it_may(text: str, most: int) -> None:
    assert len(cut_middle(text, most).encode()) <= most


@given(st.text(), st.integers(0, 40))
def test_whatever_the_text(text: str, width: int) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()
    assert width_of(cut(printable(text), width)) <= width


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
@settings(max_examples=25, deadline=None)
@example("it's; $(reboot) \\x41 `x` \x1b[31m\u202e")
def test_a_word_of_a_command_line(text: str) -> None:
    """A shell reads it as the text that it was, and a terminal sees nothing that acts."""
    word = shell_word(text)
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert done.stdout == text.encode()
    assert shell_word("two words") == "'two words'", "nothing is escaped where nothing acts"
