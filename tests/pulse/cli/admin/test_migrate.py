"""What a migration says that it did."""

from __future__ import annotations

import pytest

from pulse.cli.admin.migrate import what_was_done


@pytest.mark.parametrize(
    ("found", "said"), [(0, "installed, version 3"), (2, "from version 2 to 3"), (3, "nothing to do")]
)
def test_what_was_done(found: int, said: str) -> None:
    assert said in what_was_done(found, 3)
