"""What `pulse ctl status` says where neither process answers."""

from __future__ import annotations

import pytest

from pulse.cli.server import ServerHandle
from pulse.cli.system.status import _neither, ask_both
from pulse.errors import ForbiddenError, NobodyAnswersError, PulseError

SILENT, NO = NobodyAnswersError("no answer"), ForbiddenError("you may not")


@pytest.mark.parametrize(
    ("supervisor", "dispatcher", "told"), [(NO, SILENT, NO), (SILENT, NO, NO), (NO, ForbiddenError("nor you"), None)]
)
def test_a_refusal_says_more_than_silence(supervisor: PulseError, dispatcher: PulseError, told: object) -> None:
    assert _neither(supervisor, dispatcher) is (told or dispatcher)


def test_a_supervisor_elsewhere_is_not_asked() -> None:
    """The dispatcher includes its answer."""
    answers = ask_both(ServerHandle(None, 1.0, "tls://localhost:1"))
    assert answers.supervisor == {}
    assert isinstance(answers.dispatcher, NobodyAnswersError)
