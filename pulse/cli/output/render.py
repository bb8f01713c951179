"""
Where answers are shown: tables and lines by rich on a terminal, plain aligned text elsewhere, JSON for machines.

A command builds a ``Table`` of plain texts; what fits is decided here, once for both ways: on a terminal columns are
cut, then left out, and where even the necessary ones do not fit every row becomes a block of lines. Piped output is
neither cut nor coloured. Without rich, or under NO_COLOR, a terminal gets the same text without its styles.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO
from uuid import UUID

import click
import msgspec

from pulse.cli.lazy import DOCUMENT_WRITTEN
from pulse.cli.output.documents import document, encoded
from pulse.common.ids import short_ids
from pulse.common.text import cut, printable, width_of

if TYPE_CHECKING:
    from rich.console import Console

STATUS_STYLES: Final = {
    "PENDING": "cyan",
    "RUNNING": "bold blue",
    "RETRYING": "yellow",
    "COMPLETED": "green",
    "DEAD_LETTERED": "bold red",
    "CANCELED": "dim",
}
ACTOR_STYLES: Final = {"running": "green", "starting": "yellow", "stopping": "yellow", "failed": "bold red"}
_GAP: Final = "  "
_WIDE: Final = 120  # columns of a terminal in which whole ids leave room for the rest
_MIN_WIDTH: Final = 20  # columns; narrower windows exist only while they are being dragged


class Cell(msgspec.Struct, frozen=True):
    """A text and its style in rich's words; the style never carries what the text does not say."""

    text: str
    style: str = ""


Line = Sequence[Cell]


def foreign(text: str, style: str = "") -> Cell:
    """A cell of text that others wrote: what could act on a terminal is shown as its escape."""
    return Cell(printable(text), style)


def id_cells(ids: Sequence[bytes], width: int | None) -> list[Cell]:
    """Cells of *ids*: on a terminal of few columns (*width*) as many characters as tell them apart, else whole."""
    if width is None or width >= _WIDE:
        return [Cell(str(UUID(bytes=one))) for one in ids]
    return [Cell(text) for text in short_ids(ids)]


class Column(msgspec.Struct, frozen=True):
    """
    A column of a table.

    Attributes:
        title: Its heading.
        least: Columns of the terminal that it may be cut to; None: it is never cut.
        leave_out: Columns with a higher number are left out first where space is short; 0: never.
        right: Align to the right, as numbers are.
    """

    title: str
    least: int | None = None
    leave_out: int = 0
    right: bool = False


class Table(msgspec.Struct, frozen=True):
    """Rows of cells, one for each column."""

    columns: Sequence[Column]
    rows: Sequence[Line]


def fit(table: Table, width: int | None) -> dict[int, int] | None:
    """
    The columns that are shown in *width* columns of a terminal, and how wide each is; None: not even the least fit.

    Args:
        table: The table.
        width: What there is; None: as much as is needed.
    """
    natural = {
        index: max([width_of(column.title), *(width_of(row[index].text) for row in table.rows)])
        for index, column in enumerate(table.columns)
    }
    if width is None:
        return natural
    shown = dict(natural)
    by_importance = sorted(shown, key=lambda index: -table.columns[index].leave_out)
    while not (fitted := _squeeze(table.columns, shown, width)):
        index = by_importance.pop(0)
        if not table.columns[index].leave_out:
            return None
        del shown[index]
    return fitted


def plain_table(table: Table, width: int | None) -> list[str]:
    """The lines of *table* as text without styles, in *width* columns; None: as wide as it is."""
    widths = fit(table, width)
    if widths is None:
        return [_plain(line) for line in _blocks(table, width)]
    titles = [Cell(column.title) for column in table.columns]
    return [_plain_row(table.columns, row, widths) for row in (titles, *table.rows)]


class Screen:
    """
    Standard output for people.

    Args:
        stream: Where to write.
        env: The environment: NO_COLOR, TERM, COLUMNS.

    Attributes:
        width: Columns of the terminal; None when this is none.
    """

    def __init__(self, stream: TextIO | None = None, env: Mapping[str, str] | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        env = os.environ if env is None else env
        self.width: Final = max(_MIN_WIDTH, shutil.get_terminal_size().columns) if self._stream.isatty() else None
        self._console = self._rich(env) if self.width is not None else None

    def table(self, table: Table) -> None:
        """Show *table*."""
        widths = fit(table, self.width)
        if widths is None:
            self.lines(_blocks(table, self.width))
        elif self._console is None:
            self._write(plain_table(table, self.width))
        else:
            _show_rich(self._console, table, widths)

    def table_or(self, table: Table, nothing: str) -> None:
        """Show *table*, or that there is *nothing* where it has no rows."""
        if table.rows:
            self.table(table)
        else:
            self.lines([[Cell(nothing, "dim")]])

    def lines(self, lines: Iterable[Line]) -> None:
        """Show *lines* of styled text whole; a terminal wraps them where it must."""
        if self._console is None:
            self._write([_plain(line) for line in lines])
        else:
            from rich.text import Text

            for line in lines:
                self._console.print(Text.assemble(*((cell.text, cell.style) for cell in line)), soft_wrap=True)

    def _write(self, lines: Iterable[str]) -> None:
        self._stream.writelines(f"{line}\n" for line in lines)

    def _rich(self, env: Mapping[str, str]) -> Console | None:
        if env.get("NO_COLOR") or env.get("TERM", "dumb") == "dumb":
            return None
        try:
            from rich.console import Console
        except ImportError:  # an extra: without it the text is the same
            return None
        return Console(file=self._stream, width=self.width, highlight=False, markup=False, emoji=False)


def write_document(body: Mapping[str, object]) -> None:
    """Write an answer as one JSON document to stdout: indented on a terminal, on one line elsewhere; UTF-8 always."""
    sys.stdout.flush()
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[DOCUMENT_WRITTEN] = True
    sys.stdout.buffer.write(encoded(document(body), indented=sys.stdout.isatty()))
    sys.stdout.buffer.flush()


def _squeeze(columns: Sequence[Column], widths: Mapping[int, int], width: int) -> dict[int, int] | None:
    """*widths* made small enough by cutting the widest first; None when even the least widths are too much."""
    fitted = dict(widths)
    excess = sum(fitted.values()) + len(_GAP) * (len(fitted) - 1) - width
    while excess > 0:
        spare = {index: fitted[index] - least for index in fitted if (least := columns[index].least) is not None}
        widest = max((index for index, more in spare.items() if more > 0), key=fitted.__getitem__, default=None)
        if widest is None:
            return None
        fitted[widest] -= 1
        excess -= 1
    return fitted


def _blocks(table: Table, width: int | None) -> list[Line]:
    """Each row as lines of *width* at most: its first cell, then the others with their titles."""
    margin = max((width_of(column.title) for column in table.columns[1:]), default=0)
    lines: list[Line] = []
    for row in table.rows:
        lines.append([row[0]])
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            if cell.text:
                title = f"  {column.title:<{margin}}  "
                text = cell.text if width is None else cut(cell.text, width - len(title))
                lines.append([Cell(title, "dim"), Cell(text, cell.style)])
    return lines


def _plain(line: Line) -> str:
    return "".join(cell.text for cell in line).rstrip()


def _plain_row(columns: Sequence[Column], row: Line, widths: Mapping[int, int]) -> str:
    parts: list[str] = []
    for index, width in widths.items():
        text = cut(row[index].text, width)
        padding = " " * (width - width_of(text))
        parts.append(padding + text if columns[index].right else text + padding)
    return _GAP.join(parts).rstrip()


def _show_rich(console: Console, table: Table, widths: Mapping[int, int]) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for index, width in widths.items():
        column = table.columns[index]
        shown.add_column(column.title, width=width, no_wrap=True, justify="right" if column.right else "left")
    for row in table.rows:
        shown.add_row(*(Text(cut(row[index].text, width), style=row[index].style) for index, width in widths.items()))
    console.print(shown, crop=True)
