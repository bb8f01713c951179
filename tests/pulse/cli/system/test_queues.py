"""The queues of the config file: one that does not answer is shown, and is the exit code."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pulse.cli.server import ServerHandle
from pulse.cli.system.queues import queues
from tests.support.commandline import cli_answers as answers
from tests.support.servers.fake_dispatcher import FakeDispatcher, RuntimeDir

ORDERS = {"others": {"topics": 1, "ready": 2, "scheduled": 3, "retrying": 4, "running": 5}}


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, *, is_whole: bool) -> None:
    with RuntimeDir() as directory, FakeDispatcher(directory.path, {"stats": answers.stats(**ORDERS)}) as server:
        lines = ["[queues.orders]", f"server = '{server.path}'", "[routes]", "pay = 'orders'"]
        lines += [] if is_whole else ["[queues.gone]", "server = 'gone.sock'"]
        (directory.path / "pulse.toml").write_text("\n".join(lines), "utf-8")
        monkeypatch.setenv("PULSE_CONFIG", str(directory.path / "pulse.toml"))
        done = CliRunner().invoke(queues, ["--json"], obj=ServerHandle(None, 5.0))
    orders, *others = json.loads(done.output)["queues"]
    assert (orders["waiting"], orders["running"], orders["error"], orders["topics"]) == (9, 5, None, ["pay"])
    assert ["nobody answers" in one["error"] for one in others] == ([] if is_whole else [True])
    assert done.exit_code == (0 if is_whole else 1)
