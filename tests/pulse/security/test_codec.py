"""Envelopes: their contents, who can open them, and that no error shows any of it."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.app.app import App
from pulse.app.context import Context
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import NextSignal
from pulse.client.async_client import connect
from pulse.client.records import JobPage, SchedulePage
from pulse.client.requests import submit
from pulse.client.schedule_requests import create_schedule, update_schedule
from pulse.client.sealing import open_answer, seal_request
from pulse.common import json_text
from pulse.encryption import FernetCodec
from pulse.errors import BadRequestError, ConfigError, TooLargeError
from pulse.job import Job, Schedule, Signal, Status
from pulse.protocol import Assignment
from pulse.security.codec import Codec, UnreadableError, checked, opened, seal, sealed_by, unseal
from pulse.worker.execution.attempt import Attempt, arguments_for
from tests.support.confidential import confidential, new_key

SECRET: Final = confidential("4242-4242-4242-4242", "card number")


class Reversed:
    """The simplest codec: it records its calls, and the names in them."""

    id = "reversed"

    def encode(self, name: str, text: str) -> str:
        return f"{name}:{text[::-1]}"

    def decode(self, name: str, data: str) -> str:
        """The text; of another handler there is none."""
        assert data.startswith(f"{name}:"), SECRET
        return data.removeprefix(f"{name}:")[::-1]


class Broken(Reversed):
    def encode(self, name: str, text: str) -> str:
        raise RuntimeError(f"{name} {text} {SECRET}")


@pytest.mark.parametrize(
    "text", ["{}", '{"a": [1, {"b": null}]}', '{"$pulse": "x", "data": "y"}', '"ä\\u2028"', "[]", "0"]
)
@pytest.mark.parametrize("codec", [Reversed(), FernetCodec(new_key())], ids=["reversed", "fernet"])
def test_there_and_back(codec: Codec, text: str) -> None:
    """Any JSON comes out as it went in, an envelope too; the stored text is one, and names the codec."""
    sealed = seal(codec, "n", text)
    assert sealed_by(sealed) == codec.id
    assert json.loads(sealed).keys() == {"$pulse", "data"}
    assert unseal(codec, "n", json_text.loads(sealed)) == json_text.loads(text)


@pytest.mark.rest
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
    )
)
def test_what_is_no_envelope_stays(value: Any) -> None:
    assert unseal(None, "n", value) == value
    assert opened(Reversed(), "n", value) == value


@pytest.mark.parametrize("text", [
    "{}", '{"$pulse": 1, "data": "x"}', '{"$pulse": "x"}', '{"$pulse": "x", "data": "y", "z": 1}', '"$pulse"',
    '{"$pulse"', None,
])  # fmt: skip
def test_what_is_not_encrypted(text: str | None) -> None:
    assert sealed_by(text) is None


def test_who_cannot_read() -> None:
    sealed = json_text.loads(seal(Reversed(), "n", json.dumps({"card": SECRET})))
    other = FernetCodec(new_key())
    fernet = json_text.loads(seal(FernetCodec(new_key()), "n", '{"card": 1}'))
    strange: Any = {"$pulse": "x" * 100_000, "data": ""}  # a client that may submit may write anything there
    for codec, name, value, said in (
        (None, "n", sealed, "encrypted by codec 'reversed', and there is none here: pulse.App(codec=...)"),
        (other, "n", sealed, "encrypted by codec 'reversed', and the one that is here is 'fernet'"),
        (Reversed(), "m", sealed, "codec 'reversed' cannot read it: AssertionError"),
        (other, "n", fernet, "codec 'fernet' cannot read it: InvalidToken"),
        (None, "n", strange, f"encrypted by codec '{'x' * 64}', and there is none here: pulse.App(codec=...)"),
    ):
        with pytest.raises(UnreadableError) as caught:
            unseal(codec, name, value)
        assert str(caught.value) == said
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None or caught.value.__suppress_context__
        assert codec is None or opened(codec, name, value) == value


@pytest.mark.parametrize(
    "bad", [object(), "fernet", type("NoId", (Reversed,), {"id": 7})(), type("Upper", (Reversed,), {"id": "A"})()]
)
def test_what_is_no_codec(bad: Any) -> None:
    for give in (lambda: App(codec=bad), lambda: connect(codec=bad), lambda: checked(bad)):
        with pytest.raises(ConfigError, match="codec"):
            give()


def test_keys_are_changed() -> None:
    """The first key encrypts, each decrypts; without the old one what it encrypted cannot be read."""
    old, new = new_key(), new_key()
    before, both, after = FernetCodec(old), FernetCodec(new, old.encode()), FernetCodec(new)
    data = before.encode("n", "1")
    assert both.decode("n", data) == "1"
    assert after.decode("n", both.encode("n", "2")) == "2"
    with pytest.raises(UnreadableError, match="cannot read it: InvalidToken"):
        unseal(after, "n", {"$pulse": "fernet", "data": data})


def test_where_keys_come_from(tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    data = FernetCodec(old).encode("n", "1")
    file = tmp_path / "keys"
    file.write_text(f"{new}\n{old}\n")
    file.chmod(stat.S_IRUSR)
    for codec in (FernetCodec.from_file(file), FernetCodec.from_env(env={"PULSE_CODEC_KEYS": f"{new}, {old}"})):
        assert codec.decode("n", data) == "1"
        assert repr(codec) == "FernetCodec(...)"
    refused: list[tuple[Callable[[], object], str]] = [
        (FernetCodec, "the keys: there is no key; FernetCodec.new_key() makes one"),
        (lambda: FernetCodec(new, SECRET), "the keys: number 2 is no key; FernetCodec.new_key() makes one"),
        (lambda: FernetCodec.from_env("MINE", {}), "MINE: there is no key; FernetCodec.new_key() makes one"),
        (
            lambda: FernetCodec.from_env("MINE", {"MINE": f"{new} {SECRET}"}),
            "MINE: number 2 is no key; FernetCodec.new_key() makes one",
        ),
        (
            lambda: FernetCodec.from_file(tmp_path / "none"),
            f"{tmp_path / 'none'}: no keys can be read: FileNotFoundError",
        ),
    ]
    for give, said in refused:
        with pytest.raises(ConfigError) as caught:
            give()
        assert caught.value.message == said


def test_what_a_client_sends() -> None:
    codec = Reversed()
    made = seal_request(codec, submit([{"name": "a", "args": {"card": SECRET}}, {"name": "b"}]))
    jobs: Any = made.body["jobs"]
    assert SECRET not in str(made)
    assert [json.loads(job["args"]) for job in jobs] == [
        {"$pulse": "reversed", "data": "a:" + json.dumps({"card": SECRET}, separators=(",", ":"))[::-1]},
        {"$pulse": "reversed", "data": "b:}{"},
    ]
    assert SECRET not in str(seal_request(codec, create_schedule("a", {"card": SECRET}, {"every_s": 5.0})))
    identity = "0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b"
    assert "args" not in seal_request(codec, update_schedule(identity, {"priority": 3})).body
    with pytest.raises(BadRequestError, match="give the name beside args"):
        seal_request(codec, update_schedule(identity, {"args": {}}))
    with pytest.raises(
        BadRequestError, match=r"^submit: args cannot be encrypted: codec 'reversed' failed: RuntimeError$"
    ):
        seal_request(Broken(), submit([{"name": "a", "args": {"card": SECRET}}]))


def _job(sealed: Any) -> Job:
    return Job(id=UUID(int=1), name="n", topic="t", status=Status.COMPLETED, args=sealed, result=sealed)


def test_what_a_client_reads() -> None:
    codec = Reversed()
    mine, foreign = json_text.loads(seal(codec, "n", "[1]")), {"$pulse": "other", "data": "x"}
    for sealed, wanted in ((mine, [1]), (foreign, foreign), (None, None), ({"a": 1}, {"a": 1})):
        job = open_answer(codec, _job(sealed))
        assert (job.args, job.result) == (wanted, wanted)
        assert open_answer(codec, JobPage((_job(sealed),), None)).jobs == (job,)
    told = json_text.loads(seal(codec, "paid", "[2]"))  # under the name of the signal, as who sends it seals it
    signal = Signal(name="paid", payload=told, sent_at=datetime.now(UTC))
    assert open_answer(codec, replace(_job(None), signals=(signal,))).signals == (replace(signal, payload=[2]),)
    schedule = Schedule(id=UUID(int=1), name="n", kind="every", args=mine)
    assert open_answer(codec, schedule).args == [1]
    assert open_answer(codec, SchedulePage((schedule,), "c")).schedules[0].args == [1]
    assert open_answer(codec, {"args": mine}) == {"args": mine}


class Kept:
    lease_lost = cancelled = False
    worker = fence = None

    def __init__(self) -> None:
        self.told: list[str] = []

    def progress(self, text: str) -> None:
        self.told.append(text)

    checkpoint = progress

    def save(self, text: str) -> Receipt:
        raise NotImplementedError

    def parents(self, after: str | None) -> ParentPage:
        raise NotImplementedError

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        raise NotImplementedError


def _attempt(args: str, app: App, **extra: object) -> Attempt:
    found = {key: msgspec.Raw(msgspec.msgpack.encode(value)) for key, value in extra.items()}
    return Attempt(Assignment(bytes(16), 1, "n", "t", args, None, 30.0, found or None), app.handlers["n"], 0.0)


def _arguments(attempt: Attempt, link: Kept | None = None) -> dict[str, Any]:
    assert attempt.handler is not None
    attempt.make_link = lambda _: link or Kept()
    return dict(arguments_for(attempt, attempt.handler, {}))


def _app(codec: Codec | None) -> App:
    app = App(codec=codec)

    @app.handler("n")
    def handler(card: str, ctx: Context) -> str:
        del ctx
        return card

    assert callable(handler)
    return app


def test_what_a_worker_does() -> None:
    """It opens args and the checkpoint before, and hides result and checkpoint; progress and errors stay readable."""
    codec = Reversed()
    previous = {"outcome": "error", "checkpoint": seal(codec, "n", '{"at":7}')}
    attempt = _attempt(seal(codec, "n", json.dumps({"card": SECRET})), _app(codec), previous=previous)
    link = Kept()
    arguments = _arguments(attempt, link)
    assert arguments["card"] == SECRET
    context: Context = arguments["ctx"]
    assert context.previous is not None
    assert context.previous.checkpoint == {"at": 7}
    context.checkpoint({"card": SECRET})
    context.progress(0.5, "half")
    assert [SECRET in told for told in link.told] == [False, False]
    assert sealed_by(link.told[0]) == "reversed"
    assert json.loads(link.told[1]) == {"value": 0.5, "text": "half"}
    ending = attempt.ending(SECRET)
    assert (ending.outcome, sealed_by(str(ending.detail))) == ("ok", "reversed")
    assert attempt.ending(None).detail is None
    assert "boom" in str(attempt.ending(ValueError("boom")).detail)
    with pytest.raises(TooLargeError, match="checkpoint has"):
        context.checkpoint("x" * (1024 * 1024 - 30))


def test_a_worker_that_cannot_read() -> None:
    """Each such job fails with one clear error, without the secret; plain args work with a codec, too."""
    codec = Reversed()
    sealed = seal(codec, "n", json.dumps({"card": SECRET}))
    attempt = _attempt(sealed, _app(None))
    with pytest.raises(UnreadableError, match=r"^args are encrypted by codec 'reversed', and there is none here"):
        _arguments(attempt)
    before = {"outcome": "error", "checkpoint": sealed}
    attempt = _attempt('{"card": "x"}', _app(None), previous=before)
    with pytest.raises(UnreadableError, match=r"^the checkpoint is encrypted by codec 'reversed'"):
        _arguments(attempt)
    attempt = _attempt('{"card": "x"}', _app(codec))
    assert _arguments(attempt)["card"] == "x"
    ending = _attempt("{}", _app(Broken())).ending("result")
    assert ending == ("error", "the result cannot be encrypted: codec 'reversed' failed: RuntimeError")
