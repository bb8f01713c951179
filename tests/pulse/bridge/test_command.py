"""The command line of bridges: what it refuses before it connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse.bridge import nats
from pulse.bridge.loop import COUNTED_S, _WaitingCount
from pulse.bridge.nats import NatsOptions, connected
from pulse.errors import ConfigError, NobodyAnswersError
from tests.support.commandline.cli import environment, run

pytestmark = pytest.mark.process

BASE = ["bridge", "nats", "--stream", "S", "--consumer", "c", "--handler", "ship"]


@pytest.mark.parametrize(("words", "said"), [
    (["--stream", "a.b"], "'a.b': 1 to 255 characters are allowed, but no spaces nor any of . * > / \\"),
    (["--consumer", ""], "'': 1 to 255 characters are allowed"),
    (["--url", "nats://ann:secret@host:4222"], "user and password are not allowed here"),
    (["--creds", "/nowhere/creds"], "File '/nowhere/creds' does not exist"),
    (["--max-waiting", "0"], "0 is not in the range x>=1"),
    (["--socket", "/tmp/x", "--connect", "tls://h:1"], "--socket and --connect name two servers: one is allowed"),
])  # fmt: skip
def test_bad_usage(tmp_path: Path, words: list[str], said: str) -> None:
    done = run([*BASE, *words], environment(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "secret" not in done.err


@pytest.mark.rest
def test_where_there_are_several_queues_a_server_is_named(tmp_path: Path) -> None:
    """Also for the dashboard and metrics: none goes to the server that would be there without the config file."""
    (tmp_path / "pulse.toml").write_text('[queues.mail]\nserver = "mail.sock"\n', "utf-8")
    env = {**environment(), "PULSE_CONFIG": str(tmp_path / "pulse.toml")}
    for words, needed in (
        (BASE, "--socket or --connect"),
        (["ui", "--listen", f"unix:{tmp_path}/ui"], "--queue NAME"),
        (["metrics", "--listen", f"{tmp_path}/metrics"], "--socket PATH"),
    ):
        done = run(words, env)
        assert (done.code, done.out) == (1, "")
        assert f"the config file has queues: {needed} is needed" in done.err
        assert "mail" in done.err


async def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "CONNECT_S", 2.0)  # a busy machine has heard the refusal by then
    options = NatsOptions(["nats://ann:secret@127.0.0.1:1", "nats://[::1]:1"], stream="S", consumer="c")
    with pytest.raises(NobodyAnswersError) as raised:
        async with connected(options):
            pass
    assert raised.value.message.startswith(
        "no NATS server at nats://127.0.0.1:1, nats://[::1]:1 has let the bridge in within 2 s: "
    )
    assert "secret" not in raised.value.message


async def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"^--url is nats://host:port: "):
        async with connected(NatsOptions(["nats://host:port"], stream="S", consumer="c")):
            pass


class TestWaitingCount:
    """How many jobs a topic still takes."""

    def test_it_is_old_before_it_was_set_and_when_nothing_is_left(self) -> None:
        count = _WaitingCount(10)
        assert (count.left, count.is_old) == (10, True)
        count.set(3, asked_s=1e12, counted_s=0.0)
        assert (count.left, count.is_old) == (7, False)
        count.add(7)
        assert (count.left, count.is_old) == (0, True)

    def test_after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        count = _WaitingCount(10)
        now_s = 50.0
        monkeypatch.setattr("pulse.bridge.loop.time.monotonic", lambda: now_s)
        count.set(3, asked_s=50.0, counted_s=49.0)
        now_s += COUNTED_S
        assert not count.is_old
        now_s += 0.1
        assert count.is_old

    def test_what_was_added_since_the_count_counts_beside_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        count = _WaitingCount(100)
        for now_s in (1.0, 2.0, 3.0):
            monkeypatch.setattr("pulse.bridge.loop.time.monotonic", lambda now_s=now_s: now_s)
            count.add(10)
        count.set(20, asked_s=3.5, counted_s=2.0)
        assert count.left == 100 - 20 - 10 - 10
