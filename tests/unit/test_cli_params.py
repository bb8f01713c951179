"""Values of options and arguments: what is taken, and how the rest is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import click
import pytest

from pulse.cli import options
from pulse.job import Status

ID = "0190163d-8694-739b-aea5-966c26f8ad91"


def refusal(kind: click.ParamType[object], value: str) -> str:
    """The message that refuses *value*."""
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(value, None, None)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00:00", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31 12:00", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T12:00:00.25+01:30", datetime(2030, 1, 31, 12, 0, 0, 250_000, timezone(timedelta(minutes=90)))),
        ("20300131T120000Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        (" 2030-01-31T12:00:00Z ", datetime(2030, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_times(text: str, moment: datetime) -> None:
    """A time in ISO 8601 is taken, with its zone or, without one, as UTC."""
    assert options.TIME.convert(text, None, None) == moment.timestamp()


@pytest.mark.parametrize("text", ["tomorrow", "", "12:00", "2030-02-30", "1900000000", "2030-01-31T25:00:00Z"])
def test_other_times_are_refused(text: str) -> None:
    """What is no time is refused with the value, an example, and what a missing zone means."""
    message = refusal(options.TIME, text)
    assert message.startswith(repr(text))
    assert "2030-01-31T12:00:00Z" in message
    assert "without a zone it is UTC" in message


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("0.25", 0.25), ("1e9", 1e9)])
def test_seconds(text: str, seconds: float) -> None:
    """Numbers of seconds are taken; zero where it means something."""
    assert options.POSITIVE_S.convert(text, None, None) == seconds
    assert options.NOT_NEGATIVE_S.convert("0", None, None) == 0.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e10", "1 min", ""])
def test_other_seconds_are_refused(text: str) -> None:
    """NaN, infinity and words are no numbers of seconds."""
    message = refusal(options.POSITIVE_S, text)
    assert message == f"{text!r}: a number of seconds, above 0, at most 1e9, is allowed."


@pytest.mark.parametrize("text", [ID, ID.upper(), ID.replace("-", ""), f" {ID}"])
def test_ids(text: str) -> None:
    """A UUID is taken in every usual form."""
    assert options.ID.convert(text, None, None) == UUID(ID).bytes


@pytest.mark.parametrize("text", ["", "42", f"{ID}0", "zzzz163d-8694-739b-aea5-966c26f8ad91"])
def test_other_ids_are_refused(text: str) -> None:
    """What is no UUID is refused with an example of one."""
    assert refusal(options.ID, text).startswith(f"{text!r}: a UUID is allowed, as in ")


def test_statuses_are_those_of_jobs() -> None:
    """Every status can be asked for, in any case, and nothing else."""
    assert set(options.STATUSES) == set(Status)
    assert options.STATUS.convert("dead_lettered", None, None) == "DEAD_LETTERED"
    assert refusal(options.STATUS, "DONE") == f"'DONE': {', '.join(options.STATUSES)} are allowed."


@pytest.mark.parametrize("text", ["", "x" * 201, "\udcff", "a\0b"])
def test_names_that_cannot_be_stored_are_refused(text: str) -> None:
    """A name has 1 to 200 characters that PostgreSQL can hold; a longer value is shown cut."""
    message = refusal(options.NAME, text)
    assert message.endswith("1 to 200 characters of UTF-8 are allowed.")
    assert message.isascii() or "…" in message
    assert len(message) < 120


def test_names_may_be_of_any_language() -> None:
    """200 characters are taken, whatever they are."""
    assert options.NAME.convert("ö" * 200, None, None) == "ö" * 200


def test_args_stay_as_they_were_written() -> None:
    """Args are checked, not changed; a single - is left to the command."""
    assert options.ARGS.convert(' {"n": 1.10}', None, None) == ' {"n": 1.10}'
    assert options.ARGS.convert("-", None, None) == "-"
    assert refusal(options.ARGS, "[1]") == "'[1]': args must be a JSON object of keyword arguments, not an array."
