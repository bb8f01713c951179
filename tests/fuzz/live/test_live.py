"""The live fuzzer in short: some thousand hostile frames against a system at work; nobody dies, and no job is lost."""

from __future__ import annotations

import pytest

from tests.fuzz.live.scene import SETTINGS, Plan, Scene
from tests.fuzz.live.verdict import judge
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import place
from tests.support.whole import WHOLE

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.long, pytest.mark.system, pytest.mark.rest]


def test_a_system_at_work_bears_hostile_frames(newest_server: Postgres) -> None:
    """Every rule of the long form holds, but for latencies: the machine that runs the suite has others to serve."""
    plan = Plan(seed=20, frames=12_000 if WHOLE else 6_000, quiet_s=1.0, connections=300, times=None)
    with newest_server.database() as dsn, place(dsn, **SETTINGS) as whole:
        found = Scene(whole, plan, lambda _line: None).run()
    assert not [rule.line() for rule in judge(found) if not rule.holds]
    assert found.connections >= plan.connections
    assert {"ok", "bad_request", "not_found", "beat", "reported"} <= set(found.details["answers"])  # type: ignore[call-overload]
