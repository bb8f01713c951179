"""The short form of `make failover`: the machine of a primary is gone, and nothing that was acknowledged is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.failover.cluster import why_not
from tests.failover.run import play

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.rest, pytest.mark.patient]


@pytest.mark.skipif(why_not() is not None, reason=f"no cluster under Patroni: {why_not()}")
def test_the_machine_of_the_primary_is_gone(tmp_path: Path) -> None:
    ledger = play(["kill-node"], lambda line: print(line, file=sys.stderr), tmp_path, nodes=2, etcds=1)  # noqa: T201
    assert ledger.wrong == []
    assert [one.name for one in ledger.played] == ["kill-node"]
    assert ledger.counts["acked"] > 100
