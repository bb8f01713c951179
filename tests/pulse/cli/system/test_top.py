"""The page of ``pulse ctl top``, once; on a terminal: test_live_system.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pulse.cli.server import ServerHandle
from pulse.cli.system.top import TopSource, top
from pulse.cli.system.top_page import TopSnapshot
from tests.support.commandline import cli_answers as answers


def test_once_is_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    look, looks = TopSource.look, list[TopSource]()

    def look_once(source: TopSource) -> TopSnapshot:
        looks.append(source)
        assert len(looks) == 1, "it goes on"
        return look(source)

    monkeypatch.setattr(TopSource, "look", look_once)
    with answers.system() as server:
        words = ["--once", "--interval", "0.001"]
        done = CliRunner().invoke(top, words, obj=ServerHandle(server.path, 5.0))
    assert (done.exit_code, done.exception) == (0, None)
    assert "images" in done.output
