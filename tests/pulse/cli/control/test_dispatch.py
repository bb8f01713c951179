"""What a pause refuses before any server is asked."""

from __future__ import annotations

from click.testing import CliRunner

from pulse.cli.control.dispatch import pause


def test_a_pause_has_one_end() -> None:
    done = CliRunner().invoke(pause, ["--for", "5m", "--until", "2030-01-01T00:00"])
    assert done.exit_code == 2
    assert "--for and --until cannot be given together; one of them is allowed." in done.output
