"""What `pulse ctl status` says where neither process answers."""

from __future__ import annotations

import pytest

from pulse.cli.system.status import _neither
from pulse.errors import ForbiddenError, NobodyAnswersError, PulseError

SILENT, NO = NobodyAnswersError("no answer"), ForbiddenError("you may not")


@pytest.mark.parametrize(
    ("supervisor", "dispatcher", "told"), [(NO, SILENT, NO), (SILENT, NO, NO), (NO, ForbiddenError("nor you"), None)]
)
def test_a_refusal_says_more_than_silence(supervisor: PulseError, dispatcher: PulseError, told: object) -> None:
    assert _neither(supervisor, dispatcher) is (told or dispatcher)
