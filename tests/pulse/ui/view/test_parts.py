"""The parts of the dashboard that decide without IO: filters, orders, forms, words, charts; and the poller."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from markupsafe import escape

import pulse.ui
from pulse.errors import BadRequestError, NobodyAnswersError
from pulse.protocol import answers
from pulse.protocol.schedules import ScheduleInfo
from pulse.protocol.stats import FoundCounts, JobCounts, TopicStats
from pulse.security.codec import shown_instead
from pulse.ui.data.bulk_orders import ordered, undo_of
from pulse.ui.data.filters import Filters, seconds
from pulse.ui.data.poller import Poller, SystemSnapshot
from pulse.ui.data.queries import Questions
from pulse.ui.pages.job import timeline
from pulse.ui.pages.jobs import tabs_of
from pulse.ui.pages.schedule_form import body_of, values_from
from pulse.ui.pages.topics import is_wrong
from pulse.ui.view import formatting
from pulse.ui.view.charts import ChartLine, charts_of, draw, nice_top
from pulse.ui.view.command_link import linked
from pulse.ui.view.job_line import JobProgress, progress_of, when

ID = UUID("0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b")
NOW_S = 1_800_000_000.0
STATIC = Path(pulse.ui.__file__).parent / "static"
HTMX = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"


def job(**more: object) -> answers.JobInfo:
    return answers.JobInfo(**{"id": ID.bytes, "submitted_at": NOW_S - 100, "status": "PENDING", **more})  # type: ignore[arg-type]


class TestFilters:
    def test_empty(self) -> None:
        """No input is every job; each field has its key; an id's beginning and a part of an error differ."""
        assert Filters.of({}).is_any
        assert Filters.of({"status": [""], "q": ["  "]}).page() == {"limit": 50}
        assert Filters.of({}).words() == "all jobs"
        given = {"status": ["DEAD_LETTERED"], "q": ["421 later"], "topic": ["t"], "older": ["10m"], "limit": ["200"]}
        assert Filters.of(given).page() == {
            "status": ["DEAD_LETTERED"], "error": "421 later", "topic": "t", "older_s": 600.0, "limit": 200,
        }  # fmt: skip
        assert Filters.of({"q": ["0199a1b2-c3"]}).wire() == {"prefix": "0199a1b2c3"}
        assert Filters.of({"q": [str(ID)]}).whole_id == ID
        assert Filters.of({"limit": ["99999"]}).limit == 50
        assert Filters.of({"limit": ["0"]}).limit == 1

    @pytest.mark.parametrize(
        "given", [{"status": ["NONE"]}, {"due": ["soon"]}, {"schedule": ["x"]}, {"older": ["soon"]}]
    )
    def test_wrong(self, given: dict[str, list[str]]) -> None:
        with pytest.raises(BadRequestError, match=rf"{next(iter(given))} is .* allowed"):
            Filters.of(given).wire()

    @pytest.mark.parametrize(("given", "fits", "misfit"), [
        ({"topic": "a"}, {"topic": "a"}, {"topic": "ab"}),
        ({"status": "RETRYING"}, {"status": "RETRYING"}, {"status": "RUNNING"}),
        ({}, {"submitted_at": NOW_S}, {"submitted_at": NOW_S + 30}),
        ({"name": "a"}, {"name": "a"}, {"name": "b"}),
        ({"q": "smtp"}, {"last_error": "the SMTP said no"}, {"last_error": None}),
        ({"q": "0199a1b2"}, {}, {"id": UUID(int=1).bytes}),
        ({"worker": "w-1"}, {"locked_by": "host/x/W-1"}, {"locked_by": "host/x/w-2"}),
        ({"older": "60"}, {"submitted_at": NOW_S - 90}, {"submitted_at": NOW_S - 30}),
        ({"newer": "60"}, {"submitted_at": NOW_S - 30}, {"submitted_at": NOW_S - 90}),
        ({"schedule": str(ID)}, {"schedule_id": ID.bytes}, {"schedule_id": None}),
    ])  # fmt: skip
    def test_a_change_hits_no_more_than_was_asked_for(
        self, given: dict[str, str], fits: dict[str, object], misfit: dict[str, object]
    ) -> None:
        """Also where an older server does not know the filter and returns all jobs."""
        filters = Filters.of({key: [value] for key, value in given.items()})
        assert filters.matches(job(**fits), NOW_S)
        assert not filters.matches(job(**misfit), NOW_S)

    def test_seconds(self) -> None:
        assert [seconds("for", text) for text in ("90", "1.5h", "2D")] == [90.0, 5400.0, 172800.0]
        for text in ("", "m", "-1", "0", "nan", "1e10", "1y"):
            with pytest.raises(BadRequestError, match="for"):
                seconds("for", text)


class TestOrders:
    def test_ticked(self) -> None:
        order = ordered({"verb": ["cancel"], "id": [str(ID)], "topic": ["t"]}, NOW_S, is_final=True)
        assert (order.action.request, order.ids, order.filters, order.more) == ("jobs.cancel", [ID.bytes], None, {})

    def test_all_that_are_found(self) -> None:
        """The filters; a group of errors needs whole rows, and is matched here."""
        order = ordered({"verb": ["retry"], "all": ["1"], "topic": ["t"]}, NOW_S, is_final=True)
        assert order.filters == {"topic": "t", "brief": True}
        order = ordered({"verb": ["retry"], "all": ["1"], "kin": ["no # left"]}, NOW_S, is_final=True)
        assert order.filters == {}
        assert order.matches is not None
        assert order.matches(job(last_error="no 17 left"))
        assert not order.matches(job(last_error="no left"))

    @pytest.mark.parametrize("form", [
        {},
        {"verb": ["drop"], "all": ["1"]},
        {"verb": ["cancel"]},
        {"verb": ["cancel"], "id": ["x"]},
        *(
            {"verb": ["change"], "all": ["1"], **more}
            for more in ({}, {"to_priority": ["101"]}, {"to_priority": ["x"]})
        ),
    ])  # fmt: skip
    def test_wrong(self, form: dict[str, list[str]]) -> None:
        with pytest.raises(
            BadRequestError, match=r"^(priority|verb) is |^a job has no id|^no job is ticked|^no new topic"
        ):
            ordered(form, NOW_S, is_final=True)

    def test_undo_of_a_change_goes_back_to_each_place(self) -> None:
        ids = [bytes([number]) * 16 for number in range(3)]
        order = ordered({"verb": ["change"], "id": [str(ID)], "to_priority": ["5"]}, NOW_S, is_final=True)
        before = [(ids[0], "a", 0), (ids[1], "b", 0), (ids[2], "a", 0)]
        undo = undo_of(order, answers.ChangedAnswer(ids, [], before=before))
        assert undo is not None
        assert [dict(step.body) for step in undo.steps] == [
            {"ids": [ids[0], ids[2]], "topic": "a", "priority": 0},
            {"ids": [ids[1]], "topic": "b", "priority": 0},
        ]
        order = ordered({"verb": ["delete"], "id": [str(ID)]}, NOW_S, is_final=True)
        assert undo_of(order, answers.ChangedAnswer(ids, [])) is None


class TestScheduleForm:
    GIVEN = {"name": "n", "kind": "cron", "cron": "0 0 * * *", "timezone": "UTC", "args": "{}", "every": "7"}  # noqa: RUF012

    def test_new(self) -> None:
        assert body_of(self.GIVEN) == {"name": "n", "cron": "0 0 * * *", "timezone": "UTC", "args": "{}"}
        every = {**self.GIVEN, "kind": "every"}
        assert body_of(every, self.GIVEN) == {"every": 7.0}
        assert body_of(self.GIVEN, every) == {"cron": "0 0 * * *", "timezone": "UTC"}
        assert body_of(self.GIVEN, {**self.GIVEN, "topic": "t", "priority": "4"}) == {"topic": None, "priority": 0}
        assert body_of(self.GIVEN, self.GIVEN) == {}

    def test_durations(self) -> None:
        """As elsewhere: with units, or in seconds."""
        given = {**self.GIVEN, "kind": "every", "every": "1m30s", "timeout_s": "5m", "jitter_s": "0"}
        body = body_of(given)
        assert (body["every"], body["timeout_s"], body["jitter_s"]) == (90.0, 300.0, 0.0)
        with pytest.raises(BadRequestError, match=r"^every is 'soon': a length of time, as 90 \(seconds\), "):
            body_of({**given, "every": "soon"})

    @pytest.mark.parametrize(
        "wrong",
        [{"kind": "x"}, {"name": ""}, {"cron": ""}, {"args": "[]"}, {"args": "{"}, {"priority": "x"}, {"ends_at": "x"}],
    )
    def test_wrong(self, wrong: dict[str, str]) -> None:
        with pytest.raises(BadRequestError, match=r"^(ends_at|kind|priority|name|cron|args) (is|are|must) ?"):
            body_of({**self.GIVEN, **wrong})

    def test_shown(self) -> None:
        values = values_from(ScheduleInfo(ID.bytes, name="n", kind="at", run_at=NOW_S, jitter_s=1.5))
        assert (values["kind"], values["at"], values["jitter_s"]) == ("at", "2027-01-15T08:00:00Z", "1.5")

    def test_a_key(self) -> None:
        """And a group: the form has an empty word for each default; what was emptied is unset."""
        plain = ScheduleInfo(ID.bytes, name="n", kind="cron", cron="0 0 * * *", unique_key="k")
        keyed = msgspec.structs.replace(plain, unique_until="start", on_conflict="replace", group_key="g")
        words = {"unique": "k", "unique_until": "start", "on_conflict": "replace", "group_key": "g"}
        assert values_from(keyed).items() >= words.items()
        by_name = msgspec.structs.replace(plain, unique_until="end", on_conflict="skip")
        assert values_from(by_name) == values_from(plain)
        assert body_of({**self.GIVEN, **words}).items() >= words.items()
        emptied = {**values_from(keyed), "args": "{}", **dict.fromkeys(words, "")}
        assert body_of(emptied, {**values_from(keyed), "args": "{}"}) == dict.fromkeys(words)


class TestShown:
    def test_foreign(self) -> None:
        """Directions, hidden characters and line breaks become escapes; markup is the template's business."""
        assert formatting.foreign("a\u202eb\x00\nc\u200b") == "a\\u202eb\\x00 c\\u200b"
        assert len(formatting.foreign("x" * 10_000)) == 120
        assert formatting.block("a\n\tb\u2066").split("\n") == ["a", "    b\\u2066"]
        assert "980,000 more" in formatting.block("x" * 1_000_000)
        assert formatting.json_block('{"a":1}') == '{"a": 1}'
        assert formatting.json_block("{broken") == "{broken"
        assert len(formatting.json_block("[" * 5000)) == 5000
        sealed = '{"$pulse": "fernet", "data": "x"}'
        assert formatting.json_block(sealed) == formatting.json_line(sealed) == shown_instead(sealed) != sealed
        assert [formatting.json_line(text) for text in (None, "{}", '{"a": 1}')] == ["", "", '{"a": 1}']
        assert formatting.uuid(ID.bytes) == formatting.uuid(str(ID)) == str(ID)

    def test_an_error(self) -> None:
        """In a list the line that says what happened, of a bare traceback too; whole, its lines, without the middle."""
        bare = 'Traceback (most recent call last):\n  File "a", line 1\nValueError: no\n'
        assert formatting.first_line(f"ValueError: no\n{bare}") == formatting.first_line(bare) == "ValueError: no"
        first, note, last = formatting.trace("a" * 1000 + "\n" + "b" * 1000, 100).split("\n")
        assert (set(first), note.partition(" bytes")[2], set(last)) == ({"a"}, " left out …", {"b"})

    def test_kin(self) -> None:
        assert formatting.kin(f"user 17 at 0x7fab of {ID}") == formatting.kin(
            "user 4 at 0x1 of 11111111-2222-3333-4444-555555555555"
        )
        assert formatting.kin("a") != formatting.kin("b")
        one = "10.0.0.7:443 and ::1 refused ann@shop.example, ch_5f3a9c21, in 1.5 s, 66dd5f3a9c21e8b7aa10"
        other = "10.12.0.99:8443 and ::1 refused bob.b@mail.example, ch_9d3a9c28, in 12 s, 5f3a9c2166dd10e8b7aa"
        assert formatting.kin(one) == formatting.kin(other)
        assert formatting.kin("a deadbeef") == "a deadbeef"

    def test_times(self) -> None:
        """PostgreSQL has times that Python lacks; compared times are shown in full."""
        for moment in (float("inf"), 1e18, -1e18):
            assert formatting.stamp(moment, NOW_S) == formatting.exactly(moment, NOW_S) == "never"
        assert formatting.stamp(None, NOW_S) == formatting.exactly(None, NOW_S) == "–"
        said = '<time datetime="2027-01-15T07:58:00Z">2027-01-15 07:58:00Z</time> (2 min ago)'
        assert formatting.exactly(NOW_S - 120, NOW_S) == said

    def test_numbers(self) -> None:
        numbers = [formatting.number(value) for value in (None, 0, 3, 3.26, 1234567.8)]
        assert numbers == ["–", "0", "3", "3.3", "1,234,568"]
        sizes = [formatting.size(value) for value in (7, 2048, 5 * 2**20, 3 * 2**30)]
        assert sizes == ["7 B", "2 KiB", "5 MiB", "3 GiB"]


class TestJobLine:
    @pytest.mark.parametrize(("columns", "words"), [
        ({"status": "RUNNING", "started_at": NOW_S - 65}, "for 65 s"),
        ({"status": "PENDING", "next_run_at": NOW_S - 65}, "for 65 s"),
        ({"status": "RETRYING", "next_run_at": NOW_S + 65}, "in 65 s"),
        ({"status": "COMPLETED", "started_at": NOW_S - 67, "completed_at": NOW_S - 65}, "took 2 s, 65 s ago"),
        ({"status": "CANCELED", "started_at": NOW_S - 67, "completed_at": NOW_S - 65}, "65 s ago"),
    ])  # fmt: skip
    def test_when(self, columns: dict[str, object], words: str) -> None:
        assert when(job(**columns), NOW_S).striptags() == words

    @pytest.mark.parametrize(("text", "far"), [
        ('{"value": 0.25, "text": "a quarter"}', JobProgress(0.25, "a quarter")),
        ('{"value": 1}', JobProgress(1.0, "")),
        ('{"value": 7}', None),
        ('{"value": true}', None),
        ("[0.5]", None),
        ("{broken", None),
        (None, None),
    ])  # fmt: skip
    def test_progress(self, text: str | None, far: JobProgress | None) -> None:
        assert progress_of(text) == far


def test_tabs_keep_the_filters() -> None:
    """With others than a state the numbers are those of a count, and say where they are least ones."""
    status = answers.StatusAnswer(
        jobs={"PENDING": 5, "RUNNING": 2}, waiting=JobCounts(ready=3, scheduled=1, retrying=0)
    )
    standing = SystemSnapshot(status, {}, None, 0.0, 1)
    tabs = {tab.name: tab for tab in tabs_of(Filters(status=("RUNNING",)), standing)}
    assert {name: tab.number for name, tab in tabs.items() if tab.number not in {"", "0"}} == {
        "All": "7", "Waiting": "3", "Running": "2", "Scheduled": "1",
    }  # fmt: skip
    assert [name for name, tab in tabs.items() if tab.is_here] == ["Running"]
    tabs = {tab.name: tab for tab in tabs_of(Filters(topic="a b", after="x"), standing)}
    assert {tab.number for tab in tabs.values()} == {""}
    found = FoundCounts(ready=1, retrying=1200, completed=4000, dead_lettered=7, least=["completed", "ready"])
    assert [(tab.name, tab.number) for tab in tabs_of(Filters(topic="a b"), standing, found)] == [
        ("All", "5,208+"), ("Waiting", "1+"), ("Running", "0"), ("Scheduled", "0"), ("Retrying", "1,200"),
        ("Completed", "4,000+"), ("Dead letters", "7"), ("Canceled", "0"),
    ]  # fmt: skip
    assert tabs["Scheduled"].to == "/jobs?status=PENDING&topic=a+b&due=no"
    assert tabs["All"].is_here


@pytest.mark.parametrize(
    ("stats", "workers", "wrong"),
    [(None, 0, False), ({"ready": 1}, 0, True), ({"ready": 1}, 1, False), ({"unhandled": 1}, 1, True), ({}, 0, False)],
)
def test_a_topic_without_what_runs_its_jobs_is_wrong(stats: dict[str, Any] | None, workers: int, wrong: bool) -> None:
    assert is_wrong(None if stats is None else TopicStats("t", **stats), workers) == wrong


@pytest.mark.parametrize(("line", "to", "words"), [
    (f"Its attempts: pulse ctl jobs get {ID}", f"/jobs/{ID}", "Its attempts: its page"),
    (f"Where: pulse ctl jobs stack {ID}; more", f"/jobs/{ID}/stack", "Where: its stack; more"),
    ("pulse ctl jobs list --status RUNNING --topic 'a b'", "/jobs?status=RUNNING&amp;topic=a+b", "list these jobs"),
    ("pulse ctl dispatch resume --topic images", "/topics/view?topic=images", "resume"),
    ("pulse ctl dispatch resume", "/gate", "resume"),
    (
        "When the cause is gone: pulse ctl jobs retry ID…",
        "/dead",
        "When the cause is gone: retry them under Dead letters",
    ),
    ("kill -CONT 7", None, "kill -CONT 7"),
    ("pulse goes on by <itself>.", None, "pulse goes on by &lt;itself&gt;."),
])  # fmt: skip
def test_commands_are_links(line: str, to: str | None, words: str) -> None:
    text = linked(line)
    assert (f'href="{to}"' in text) == (to is not None)
    assert re.sub("<[^>]*>", "", text) == words
    assert ("<code>" in text) == line.startswith("kill")


def test_a_page_does_not_link_to_itself() -> None:
    line = f"Its attempts: pulse ctl jobs get {ID}; to run it again: pulse ctl jobs retry {ID}"
    assert linked(line, f"/jobs/{ID}") == "Its attempts: below; to run it again: the button above"


class TestCharts:
    def test_without_a_history_there_is_no_chart(self) -> None:
        assert charts_of(None) == []

    @pytest.mark.parametrize(("most", "top"), [(0, 1), (0.3, 0.4), (7, 10), (10, 10), (41, 50), (1e6, 1e6)])
    def test_scale(self, most: float, top: float) -> None:
        assert nice_top(most) == pytest.approx(top)

    @pytest.mark.parametrize(("span_s", "shown"), [(30.0, "00:00:30"), (3600.0, "01:00")])
    def test_a_short_time_has_seconds(self, span_s: float, shown: str) -> None:
        assert f">{shown} UTC</text>" in draw("Rate", [0.0, span_s], [], str).svg

    def test_gaps_and_words(self) -> None:
        """Without a measurement there is a gap; names are text; a screen reader gets the numbers."""
        line = ChartLine("<b>", [1.0, None, 3.0, 2.0], "a")
        chart = draw("Rate", [0.0, 10.0, 20.0, 30.0], [line], lambda value: f"{value:g}/s")
        assert chart.svg.count("M") >= 2
        assert str(escape("<b> now 2/s")) in chart.svg
        assert "highest 3/s" in chart.svg
        assert "<b>" not in chart.svg
        assert draw("Empty", [0.0, 1.0], [ChartLine("a", [None, None], "a")], str).legend == [("a", "a", "–")]


def test_what_is_wrong_stands_where_it_belongs() -> None:
    told = answers.FindingInfo("hosts", "warning", "host a is gone", ["host b is gone"], "start it")
    newer = answers.FindingInfo("of a newer server", "wrong", "so")
    snapshot = SystemSnapshot(answers.StatusAnswer(findings=[told, newer]), {}, None, 0.0, 1)
    assert [one.check for one in snapshot.findings] == ["of a newer server", "hosts"]
    assert [one.advice for one in snapshot.about("/workers")] == [("start it",)]
    assert snapshot.about("/actors") == []
    assert (snapshot.health, snapshot.summary) == ("wrong", "1 wrong, 1 warning")


def test_timeline() -> None:
    failed = answers.AttemptInfo(attempt=1, outcome="error", ended_at=NOW_S)
    told = [moment.title for moment in timeline(job(status="RETRYING", attempts=1, history=[failed]))]
    assert told == ["submitted", "attempt 1: error", "due"]
    told = [moment.title for moment in timeline(job(status="COMPLETED", attempts=2, history=[failed]))]
    assert told == ["submitted", "attempt 1: error", "attempt 2: completed"]
    origins = ({"schedule_id": ID.bytes}, {"waiting_on": 0}, {"next_run_at": NOW_S}, {"next_run_at": NOW_S - 100})
    notes = [next(iter(timeline(job(**origin)))).note for origin in origins]
    assert notes == ["by its schedule", "to run after other jobs", "to run later", ""]


def test_timeline_tells_how_long_each_attempt_waited_and_ran() -> None:
    failed = answers.AttemptInfo(attempt=1, outcome="error", started_at=NOW_S - 87, ended_at=NOW_S - 80)
    again = {"attempts": 2, "history": [failed], "started_at": NOW_S - 20}
    told = [(one.waited_s, one.took_s) for one in timeline(job(status="RUNNING", **again))]
    assert told == [(None, None), (13, 7), (60, None)]
    told = [(one.waited_s, one.took_s) for one in timeline(job(status="COMPLETED", **again, completed_at=NOW_S - 15))]
    assert told[-1] == (60, 5)


def test_what_is_vendored_is_what_was_published() -> None:
    assert hashlib.sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() == HTMX
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE.txt").read_text("utf-8")


class Counting(Questions):
    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[str] = []

    async def ask_fresh(self, kind: str, body: object = None, *, within_s: float) -> dict[str, object]:
        self.asked.append(kind)
        raise NobodyAnswersError("no answer")

    async def ask_supervisor(self) -> dict[str, object]:
        self.asked.append("supervisor status")
        return {}


async def _first(poller: Poller) -> SystemSnapshot:
    async for standing in poller.watch():
        return standing
    raise AssertionError


@pytest.mark.anyio
async def test_fifty_tabs_ask_as_much_as_one() -> None:
    questions = Counting()
    poller = Poller(questions)
    running = asyncio.ensure_future(poller.run())
    await asyncio.sleep(0)
    assert questions.asked == []
    told = await asyncio.gather(*(_first(poller) for _ in range(50)))
    assert {one.number for one in told} == {1}
    assert sorted(questions.asked) == ["stats", "status", "supervisor status"]
    assert (told[0].silent, told[0].health) == ({"dispatcher": "no answer"}, "down")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
