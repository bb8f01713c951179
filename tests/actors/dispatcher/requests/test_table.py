"""What is written down of who asked."""

from __future__ import annotations

import pytest

from pulse.store.operators.transaction import Operator
from pulse_actors.dispatcher.requests.table import _who


@pytest.mark.parametrize(("operator", "who"), [
    (Operator(), None), (Operator(user="ann"), "ann"), (Operator(7), "uid 7"), (Operator(7, "ann"), "uid 7 (ann)"),
    (Operator(7, "pulse", behalf="bob"), "uid 7 (pulse) for bob"),
])  # fmt: skip
def test_who_paused(operator: Operator, who: str | None) -> None:
    """The kernel's word where there is one; of another machine's client only its login is known."""
    assert _who(operator) == who
