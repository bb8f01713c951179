"""What a migration prints."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pulse.cli.admin.migrate import migrate, what_was_done


@pytest.mark.parametrize(
    ("found", "said"), [(0, "installed, version 3"), (2, "from version 2 to 3"), (3, "nothing to do")]
)
def test_what_was_done(found: int, said: str) -> None:
    assert said in what_was_done(found, 3)


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--print"], 2, "--print is allowed with --roles only"), (["--print", "--roles"], 0, "CREATE ROLE"),
])  # fmt: skip
def test_what_is_only_printed(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(migrate, words, env={"PULSE_DSN": "postgresql:///nobody?host=/nowhere"})
    assert (done.exit_code, said in done.output) == (code, True)
