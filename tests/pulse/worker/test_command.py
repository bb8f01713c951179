"""What `pulse worker` refuses before it starts anything."""

from __future__ import annotations

from click.testing import CliRunner

from pulse.worker.command import worker


def test_a_topic_that_is_too_long() -> None:
    done = CliRunner().invoke(worker, ["tests.support.apps.worker_app:app", "--topic", "x" * 201])
    assert (done.exit_code, "1 to 200 characters are allowed" in done.output) == (2, True)
