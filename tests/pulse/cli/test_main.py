"""The tree of commands: complete, described, cheap to look at; and its man page, as ``man`` reads it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pulse.cli.admin.manpage import manpage
from pulse.cli.lazy import LazyGroup
from pulse.cli.main import _fail, cli
from pulse.errors import PulseError
from tests.support.checking.every import every


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command below *group*, groups included, with its path."""
    context = click.Context(group, info_name="pulse")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


ALL = dict(commands(cli))


def test_every_command_has_a_help_text() -> None:
    every(ALL, _has_a_help_text)


def _has_a_help_text(path: str) -> None:
    command = ALL[path]
    context = click.Context(command, info_name=f"pulse {path}")
    assert command.get_help(context)
    assert command.help
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden and not isinstance(param.type, click.Choice):
            assert param.help, param.opts
    if not isinstance(command, click.Group) and path != "demo":  # which takes nothing that one could show
        assert f"pulse {path}" in (command.epilog or "")


@pytest.mark.parametrize(("words", "meant"), [(["jobs"], "ctl jobs"), (["ctl", "jbos"], "jobs")])
def test_a_command_that_there_is_not(words: list[str], meant: str) -> None:
    """A similar one may be meant, or one of a group that was left out."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert f"No such command {words[-1]!r}. Did you mean {meant!r}?" in done.output


def test_a_module_that_no_extra_brings_is_a_fault() -> None:
    """It is raised as it is: to install an extra would not help."""
    error = ModuleNotFoundError("No module named 'shop'", name="shop")
    with pytest.raises(ModuleNotFoundError) as raised:
        _fail(error, ["demo"], has_document=False)
    assert raised.value is error


def test_the_short_help_of_a_command_fits_on_a_line() -> None:
    groups = [group for group in (cli, *ALL.values()) if isinstance(group, LazyGroup)]
    assert len(groups) >= 2
    helps = [entry.help for group in groups for entry in group.lazy.values()]
    assert [text for text in helps if not text.endswith(".") or len(text) > 60] == []


def test_every_error_of_pulse_is_a_line() -> None:
    """What users see of an error is its message, so it has to have one."""
    assert str(PulseError()) == "pulse could not do what was asked."


PAGE = Path(__file__).resolve().parents[3] / "docs" / "man" / "pulse.1"


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text("utf-8") == manpage(cli), "docs/man/pulse.1 is old: make man"


def test_every_command_and_option_is_in_it() -> None:
    plain = manpage(cli).replace("\\-", "-").replace("\\&", "")
    for path, command in ALL.items():
        if not isinstance(command, click.Group):
            assert f".SS pulse {path}" in plain
            for param in command.params:
                assert not isinstance(param, click.Option) or param.hidden or param.opts[0] in plain


def test_man_understands_it() -> None:
    program = shutil.which("groff")
    if program is None:
        pytest.skip("package groff is not installed")
    done = subprocess.run(
        [program, "-man", "-Tutf8", "-ww", "-P-cbou"], input=PAGE.read_bytes(), capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert "pulse ctl jobs why" in done.stdout.decode().replace("‐", "-")
