"""Workers that live by leases alone: of other hosts, of other users, or without proof of death."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.systems.peers import Peer, new_job
from tests.support.systems.system import System

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

# No poll can help a wake-up that is missing.
SETTINGS: Final = {"PULSE_POLL_S": "60", "PULSE_SWEEP_S": "0.2", "PULSE_PROOF_OF_DEATH": "0"}


def test_a_silent_worker_loses_its_lease(system: System, client: Peer, topic: str) -> None:
    """The lease lapses, another worker completes attempt 2, and the zombie's late report changes nothing."""
    with system.worker("zombie", topics=[topic], capacity=1) as zombie, system.worker("heir", topics=[topic]) as heir:
        told = [one["recovery"] for one in client.call("workers.list")["workers"] if topic in one["topics"]]
        assert told == ["lease", "lease"]
        heir.send("capacity", None, capacity=0)
        heir.call("ping")  # it has been heard
        (identity,) = client.submit(new_job(topic=topic))
        assert zombie.job() == (identity, 1)
        heir.send("capacity", None, capacity=1)
        system.set_lease(identity, 0.0)
        assert heir.job() == (identity, 2)
        before = system.row(identity)
        assert zombie.beat((identity, 1)) == [[identity, 1]]
        assert zombie.done((identity, 1)) == [[identity, 1]]
        assert system.row(identity) == before
        assert heir.done((identity, 2)) == []
        row = system.row(identity)
        assert (row["status"], row["attempts"], row["last_error"]) == ("COMPLETED", 2, "worker lease expired")
