"""Which queue has the jobs that are meant, where the config file has several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import click
import pytest

from pulse.cli.lookup import jobs_of, schedule_of
from pulse.cli.server import ServerHandle, current_server
from pulse.errors import BadRequestError, NobodyAnswersError, NotFoundError
from tests.support.commandline import cli_answers as answers
from tests.support.servers.fake_dispatcher import Body, FakeDispatcher, RuntimeDir

PAID, SENT, SHARED = (bytes([digits]) * 16 for digits in (0xAA, 0xBB, 0xCC))
QUEUES = {"orders": [PAID, SHARED], "mail": [SENT, SHARED]}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A command line whose config file has two queues; the directory of that."""
    for name in ("PULSE_RUNTIME_DIR", "PULSE_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        directory = stack.enter_context(RuntimeDir()).path
        lines = []
        for name, ids in QUEUES.items():

            def found(body: Body, ids: list[bytes] = ids) -> Body:
                prefixes = body["prefixes"]
                assert isinstance(prefixes, list)
                return {"jobs": [answers.job(id=one) for one in ids if one.hex().startswith(tuple(prefixes))]}

            stack.enter_context(FakeDispatcher(directory, {"jobs.find": found}, name=name))
            lines += [f"[queues.{name}]", f"server = '{directory / name}'"]
        (directory / "pulse.toml").write_text("\n".join(lines), "utf-8")
        monkeypatch.setenv("PULSE_CONFIG", str(directory / "pulse.toml"))
        stack.enter_context(click.Context(click.Command("x"), obj=ServerHandle(None, 5.0)))
        yield directory


@pytest.mark.parametrize(("words", "ids", "queue"), [(["aa"], [PAID], "orders"), ([SENT, "b"], [SENT, SENT], "mail")])
@pytest.mark.usefixtures("shop")
def test_jobs_of_one_queue(words: list[str | bytes], ids: list[bytes], queue: str) -> None:
    assert jobs_of(words) == ids
    asked = current_server().queue
    assert asked is not None
    assert asked.name == queue


@pytest.mark.parametrize(("words", "error", "said"), [
    (["cc"], BadRequestError, r"^cc may mean jobs of several queues; name one with --queue: orders, mail$"),
    ([SHARED], BadRequestError, f"^{SHARED.hex()} may mean jobs of several queues"),
    (["aa", SENT], BadRequestError, f"^jobs of several queues are meant: aa of queue orders, {SENT.hex()} of "),
    (["aa", "dd"], NotFoundError, r"^no job in the queues orders, mail has an id that begins with dd$"),
], ids=["beginning", "whole", "two", "none"])  # fmt: skip
@pytest.mark.usefixtures("shop")
def test_jobs_of_several_queues_or_none(words: list[str | bytes], error: type[Exception], said: str) -> None:
    """None of them is asked for: the command would do half of what was meant."""
    with pytest.raises(error, match=said):
        jobs_of(words)
    assert current_server().queue is None


def test_a_queue_that_does_not_answer(shop: Path) -> None:
    """It may have what the others do not, and other jobs whose ids begin so; a whole id was found."""
    with (shop / "pulse.toml").open("a", encoding="utf-8") as file:
        file.write("\n[queues.gone]\nserver = 'gone'\n")
    with pytest.raises(NobodyAnswersError, match=r"^the queues that answer have no job dd; queue gone: nobody answers"):
        jobs_of(["dd"])
    with pytest.raises(NobodyAnswersError, match=r"have one job aa, and the others may, too: "):
        jobs_of(["aa"])
    assert jobs_of([PAID]) == [PAID]


def test_a_whole_id_of_a_schedule_is_not_looked_for() -> None:
    """The server that gets it will say whether there is one."""
    assert schedule_of(UUID(int=7).bytes) == UUID(int=7).bytes
