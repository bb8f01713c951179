"""Values of options and arguments, and args as people write them: what is accepted, and how the rest is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.cli import options
from pulse.cli.jobs import filters
from pulse.cli.jobs.jsonlines import BadLineError, LineBatch, batches
from pulse.common.duration import ABOVE_ZERO, ZERO_OR_MORE
from pulse.errors import BadRequestError
from pulse.job import Status
from pulse.ops.json_input import check_args

ID = "0190163d-8694-739b-aea5-966c26f8ad91"


def refusal(kind: click.ParamType[object], value: str) -> str:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(value, None, None)
    return caught.value.message


@pytest.mark.parametrize(("text", "moment"), [
    ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
    ("2030-01-31T12:00:00", datetime(2030, 1, 31, 12, tzinfo=UTC)),
    ("2030-01-31 12:00", datetime(2030, 1, 31, 12, tzinfo=UTC)),
    ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
    ("2030-01-31T12:00:00.25+01:30", datetime(2030, 1, 31, 12, 0, 0, 250_000, timezone(timedelta(minutes=90)))),
    ("20300131T120000Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
    (" 2030-01-31T12:00:00Z ", datetime(2030, 1, 31, 12, tzinfo=UTC)),
])  # fmt: skip
def test_times(text: str, moment: datetime) -> None:
    assert options.TIME.convert(text, None, None) == moment.timestamp()


@pytest.mark.parametrize("text", ["tomorrow", "", "12:00", "2030-02-30", "1900000000", "2030-01-31T25:00:00Z"])
def test_other_times_are_refused(text: str) -> None:
    message = refusal(options.TIME, text)
    assert message.startswith(repr(text))
    assert "2030-01-31T12:00:00Z" in message
    assert "without a zone it is UTC" in message


def test_durations() -> None:
    assert [options.DURATION.convert(text, None, None) for text in ("90", "2h30m")] == [90.0, 9000.0]
    assert options.DURATION_OR_ZERO.convert("0", None, None) == 0.0
    assert refusal(options.DURATION, "0") == f"'0': {ABOVE_ZERO}."
    assert refusal(options.DURATION_OR_ZERO, "soon") == f"'soon': {ZERO_OR_MORE}."
    assert options.BACKOFF.convert("exponential:1s:10m", None, None) == "exponential:1:600"


def test_backoffs() -> None:
    assert options.BACKOFF.convert("fixed:5", None, None) == "fixed:5"
    assert refusal(options.BACKOFF, "fixed").startswith("'fixed': allowed are ")


def test_ids() -> None:
    for text in (ID, ID.upper(), ID.replace("-", ""), f" {ID}"):
        assert options.ID.convert(text, None, None) == UUID(ID).bytes
    for text in ("", "42", f"{ID}0", "zzzz163d-8694-739b-aea5-966c26f8ad91"):
        assert refusal(options.ID, text).startswith(f"{text!r}: a UUID is allowed, as in ")


def test_prefixes_of_ids() -> None:
    """A wrong one would choose nothing, or, as an empty one, all."""
    kind = filters.PREFIX
    for text in ("0", ID[:10], ID, ID.upper()):
        assert kind.convert(text, None, None) == text
    for text in ("", "-", "0g", f"{ID}0", " 0"):
        assert refusal(kind, text) == f"{text!r}: 1 to 32 hexadecimal digits are allowed."


def test_words_for_jobs() -> None:
    """A whole id, however it is written, is its bytes; the begin of one its digits."""
    for text in (ID, ID.upper(), ID.replace("-", ""), f" {ID}"):
        assert options.JOB.convert(text, None, None) == UUID(ID).bytes
    assert options.JOB.convert("0190163D-86", None, None) == "0190163d86"
    for text in ("", "0190163", "0190163x", f"{ID}0"):
        assert "the id of a job is allowed, or its first characters, 8 or more" in refusal(options.JOB, text)


def test_words_for_schedules() -> None:
    assert options.SCHEDULE.convert(ID, None, None) == UUID(ID).bytes
    assert options.SCHEDULE.convert("nightly report", None, None) == "nightly report"
    assert "1 to 200 characters" in refusal(options.SCHEDULE, "")


def test_statuses_are_those_of_jobs() -> None:
    assert set(options.STATUSES) == set(Status)
    assert options.STATUS.convert("dead_lettered", None, None) == "DEAD_LETTERED"
    assert refusal(options.STATUS, "DONE") == f"'DONE': {', '.join(options.STATUSES)} are allowed."


def test_names() -> None:
    assert options.NAME.convert("ö" * 200, None, None) == "ö" * 200
    for text in ("", "x" * 201, "\udcff", "a\0b"):
        message = refusal(options.NAME, text)
        assert message.endswith("1 to 200 characters of UTF-8 are allowed.")
        assert message.isascii() or "…" in message
        assert len(message) < 120


def test_args_stay_as_they_were_written() -> None:
    assert options.ARGS.convert(' {"n": 1.10}', None, None) == ' {"n": 1.10}'
    assert options.ARGS.convert("-", None, None) == "-"
    assert refusal(options.ARGS, "[1]") == "'[1]': args must be a JSON object of keyword arguments, not an array."


def test_a_payload_is_any_json() -> None:
    """It stays as it was written."""
    for text in ("null", "[1.10]", '"x"', ' {"n": 1e400}', "-"):
        assert options.PAYLOAD.convert(text, None, None) == text
    assert refusal(options.PAYLOAD, "paid").startswith("'paid': the payload is not JSON: Expecting value at character")
    assert refusal(options.PAYLOAD, "NaN") == "'NaN': the payload is not JSON: NaN is no JSON number."
    assert refusal(options.PAYLOAD, r'"\u0000"').endswith("the payload is not storable: it contains a NUL character.")


@pytest.mark.parametrize("text", [
    "{}", ' {"path": "a.png"} ', '{"n": ' + "9" * 5000 + "}", '{"x": 1e400, "y": -0.1}',
    r'{"emoji": "\ud83d\ude00", "path": "C:\\u0000"}', '{"ö": "日本"}', '{"a": 1, "a": 2}',
])  # fmt: skip
def test_args_that_can_be_stored(text: str) -> None:
    check_args(text)


@pytest.mark.parametrize(("text", "message"), [
    ("[1]", "args must be a JSON object of keyword arguments, not an array"),
    ('"x"', "args must be a JSON object of keyword arguments, not a string"),
    ("5", "args must be a JSON object of keyword arguments, not a number"),
    ("5.5", "args must be a JSON object of keyword arguments, not a number"),
    ("true", "args must be a JSON object of keyword arguments, not true or false"),
    ("null", "args must be a JSON object of keyword arguments, not null"),
    ("", "args are not JSON: Expecting value at character 1"),
    ("{'a': 1}", "args are not JSON: Expecting property name enclosed in double quotes at character 2"),
    ('{"a":\n 1,,}', "args are not JSON: Expecting property name enclosed in double quotes at line 2, character 4"),
    ("{} {}", "args are not JSON: Extra data at character 4"),
    ('{"a": NaN}', "args are not JSON: NaN is no JSON number"),
    ('{"a": -Infinity}', "args are not JSON: -Infinity is no JSON number"),
    (r'{"a": "\u0000"}', "args are not storable: it contains a NUL character"),
    (r'{"\u0000": 1}', "args are not storable: it contains a NUL character"),
    (r'{"a": ["\ud800"]}', "args are not storable: it contains a lone surrogate"),
    ('{"a": "\udc80"}', "args are not UTF-8 text"),
    ('{"a": "\x00"}', "args are not JSON: Invalid control character at at character 8"),
    ('{"a":' * 100_000, "args are nested too deeply"),
])  # fmt: skip
def test_args_that_cannot_be_stored(text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        check_args(text)
    assert caught.value.message == message


def cut_up(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
    yield data[start:]


def test_lines_become_batches() -> None:
    data = b"".join(b'{"n": %d}\n' % number for number in range(5)) + b"\n  \n" + b'{"n": 5}'
    assert list(batches([data], most_jobs=2)) == [
        LineBatch(1, 2, ['{"n": 0}', '{"n": 1}']), LineBatch(3, 4, ['{"n": 2}', '{"n": 3}']),
        LineBatch(5, 7, ['{"n": 4}']), LineBatch(8, 8, ['{"n": 5}']),
    ]  # fmt: skip


def test_a_large_line_goes_alone() -> None:
    large = b'{"x": "' + b"y" * 200 + b'"}'
    sizes = [len(batch.args) for batch in batches([b"\n".join([b"{}", b"{}", large, b"{}"])], most_bytes=100)]
    assert sizes == [2, 1, 1]


def test_what_was_read_does_not_wait_for_more() -> None:
    """The lines of one read are a batch: a slow producer's jobs are not kept back."""
    assert [batch.args for batch in batches([b"{}\n{}\n{", b"}\n"])] == [["{}", "{}"], ["{}"]]


@pytest.mark.parametrize("bad", [b"[3]", b"{", b'{"a": "\xff"}', rb'{"a": "\u0000"}'])
def test_a_bad_line_ends_the_batches(bad: bytes) -> None:
    found = batches([b'{}\n\n{"a": 1}\n' + bad + b"\n{}\n"])
    assert next(found).args == ["{}", '{"a": 1}']
    with pytest.raises(BadLineError, match=r"^line 4: args "):
        next(found)


def test_input_without_lines_is_not_read_for_ever() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"y" * 1024 * 1024

    with pytest.raises(BadLineError, match="line 1: args are not JSON"):
        list(batches(endless()))


@given(st.lists(st.integers(), max_size=30), st.lists(st.integers(1, 9), max_size=40), st.integers(1, 5))
def test_batches_do_not_depend_on_how_the_input_arrives(numbers: list[int], sizes: list[int], most: int) -> None:
    found = list(batches(cut_up(b"".join(b'{"n":%d}\n' % number for number in numbers), sizes), most_jobs=most))
    assert [text for batch in found for text in batch.args] == [f'{{"n":{number}}}' for number in numbers]
    assert all(1 <= len(batch.args) <= most for batch in found)
