"""Tables: what is shown in which width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.cli.output.render import Cell, Column, Screen, Table, fit, foreign, plain_table
from pulse.common.text import width_of

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
COLUMNS = (
    Column("id"),
    Column("name", least=4),
    Column("tries", right=True, leave_out=2),
    Column("error", least=6, leave_out=1),
)


def table(*rows: tuple[str, ...]) -> Table:
    """A table of plain texts."""
    return Table(COLUMNS, [[Cell(text) for text in row] for row in rows])


SMALL = table(("a1", "resize", "1/5", ""), ("b2", "crunch numbers", "12/20", "ValueError: no such file"))


def test_piped_text_is_aligned_and_whole() -> None:
    """Without a width nothing is cut, columns are aligned, numbers to the right, no line ends in blanks."""
    assert plain_table(SMALL, None) == [
        "id  name            tries  error",
        "a1  resize            1/5",
        "b2  crunch numbers  12/20  ValueError: no such file",
    ]


def test_the_widest_column_is_cut_first() -> None:
    """Where space is short the longest text gives way."""
    assert plain_table(SMALL, 41) == [
        "id  name            tries  error",
        "a1  resize            1/5",
        "b2  crunch numbers  12/20  ValueError: n…",
    ]


def test_columns_are_left_out_in_their_order() -> None:
    """Where cutting does not help, the least important columns go: the highest number first."""
    assert list(fit(SMALL, 23) or {}) == [0, 1, 2, 3]
    assert list(fit(SMALL, 22) or {}) == [0, 1, 3]
    assert list(fit(SMALL, 15) or {}) == [0, 1]
    assert fit(SMALL, 7) is None


def test_rows_become_blocks_where_nothing_else_fits() -> None:
    """In a very narrow window every row is a block, ids whole, the rest cut, and cells without text are left out."""
    wide = table((ID, "resize", "1/5", ""), (ID, "crunch numbers", "", "ValueError: no such file"))
    assert plain_table(wide, 40) == [
        ID,
        "  name   resize",
        "  tries  1/5",
        ID,
        "  name   crunch numbers",
        "  error  ValueError: no such file",
    ]
    assert plain_table(wide, 20)[-1] == "  error  ValueError…"


def test_wide_characters_take_two_columns() -> None:
    """Alignment counts columns of the terminal, not characters."""
    lines = plain_table(table(("a1", "日本", "1/5", ""), ("b2", "abcd", "1/5", "")), None)
    assert lines[1] == "a1  日本    1/5"
    assert lines[2] == "b2  abcd    1/5"


@given(
    st.lists(st.tuples(*[st.text(st.characters(codec="utf-8"), max_size=30)] * 4), max_size=5),
    st.integers(min_value=20, max_value=120),
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    """Whatever is in a table, the lines of a listing fit, apart from ids, which are never cut."""
    shown = Table(
        COLUMNS, [[Cell(f"{index:08}"), *(foreign(text) for text in row[1:])] for index, row in enumerate(rows)]
    )
    assert all(width_of(line) <= width for line in plain_table(shown, width))


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.mark.parametrize(("env", "is_styled"), [
    ({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ({"TERM": "dumb"}, False), ({}, False),
])  # fmt: skip
def test_styles_need_a_terminal_that_wants_them(
    env: dict[str, str], is_styled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR, where it is not empty, and a dumb terminal get text without any escape."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    screen = Screen(stream, env)
    screen.table(SMALL)
    screen.lines([[Cell("bad", "bold red")]])
    assert ("\x1b[" in stream.getvalue()) is is_styled
    assert "bad" in stream.getvalue()


def test_a_pipe_gets_no_styles() -> None:
    """Text that is piped is plain, and is not cut to any width."""
    stream = io.StringIO()
    screen = Screen(stream, {"TERM": "xterm", "COLUMNS": "20"})
    screen.lines([[Cell("x" * 100, "red"), Cell("y", "bold")]])
    assert stream.getvalue() == "x" * 100 + "y\n"
    assert screen.width is None


def test_square_brackets_are_text() -> None:
    """What looks like markup is shown as it is."""
    stream = Terminal()
    screen = Screen(stream, {"TERM": "xterm"})
    screen.table(table(("a", "[red]x[/red]", "", "[bold]")))
    screen.lines([[Cell("[/nonsense] :smile: 42")]])
    assert "[red]x[/red]" in stream.getvalue()
    assert "[bold]" in stream.getvalue()
    assert "[/nonsense] :smile: 42" in stream.getvalue()
