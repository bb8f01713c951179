"""``pulse completion``: the script that makes a shell complete pulse's commands, options and their values."""

from __future__ import annotations

import click

from pulse.cli.lazy import examples


@click.command(
    epilog=examples(
        'eval "$(pulse completion bash)"                    # in ~/.bashrc',
        'eval "$(pulse completion zsh)"                     # in ~/.zshrc',
        "pulse completion fish > ~/.config/fish/completions/pulse.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: bash (4.4 or newer), zsh or fish."""
    from click.shell_completion import get_completion_class

    from pulse.cli.main import COMPLETION_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 -- narrows the type: click knows these three
    click.echo(kind(cli, {}, "pulse", COMPLETION_VARIABLE).source())
