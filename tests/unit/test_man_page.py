"""``docs/man/pulse.1`` held against the commands, and read as ``man`` reads it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from pulse.cli.admin.manpage import manpage
from pulse.cli.main import cli
from tests.unit.test_cli_commands import ALL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "man" / "pulse.1"


def test_the_page_is_that_of_the_commands() -> None:
    """It is made anew, by `make man`, whenever a command changes."""
    assert PAGE.read_text("utf-8") == manpage(cli), "docs/man/pulse.1 is old: make man"


def test_every_command_and_option_is_in_it() -> None:
    """Whoever searches for one finds it."""
    plain = manpage(cli).replace("\\-", "-").replace("\\&", "")
    for path, command in ALL.items():
        if not isinstance(command, click.Group):
            assert f".SS pulse {path}" in plain
            for param in command.params:
                assert not isinstance(param, click.Option) or param.hidden or param.opts[0] in plain


def test_man_understands_it() -> None:
    """Without a warning, and nothing runs out of a page of 80 columns but examples."""
    program = shutil.which("groff")
    if program is None:
        pytest.skip("package groff is not installed")
    done = subprocess.run(
        [program, "-man", "-Tutf8", "-ww", "-P-cbou"],
        input=PAGE.read_bytes(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "pulse ctl jobs why" in done.stdout.decode().replace("‐", "-")
