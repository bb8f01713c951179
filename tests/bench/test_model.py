"""The model of more cores: it is bound by what it must be bound by."""

from __future__ import annotations

import pytest

from bench.model import BATCH, Costs, Machine, main, play

COSTS = Costs()


@pytest.mark.parametrize(("steady", "cost_us"), [(False, COSTS.drain), (True, COSTS.steady)])
def test_one_core_is_all_that_is_used(steady: bool, cost_us: float) -> None:
    played = play(Machine(1), steady=steady)
    assert played.rate == pytest.approx(1e6 / cost_us, rel=0.05)
    assert played.idle == pytest.approx(0, abs=0.01)


def test_one_server_claims_and_hands_over_in_turn() -> None:
    turn_us = BATCH * (COSTS.claim + COSTS.hand_over) + COSTS.commit_us
    played = play(Machine(64))
    assert played.rate == pytest.approx(1e6 * BATCH / turn_us, rel=0.05)
    assert played.busiest == "claims"
    assert played.idle > 0.9


def test_servers_on_other_cores_add_up() -> None:
    assert play(Machine(64, servers=4)).rate == pytest.approx(4 * play(Machine(64)).rate, rel=0.05)


def test_what_costs_more_becomes_the_busiest() -> None:
    assert play(Machine(64), costs=Costs(run=40.0)).busiest == "worker"
    assert play(Machine(64, workers=4), costs=Costs(run=40.0)).busiest != "worker"


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--cores", "2", "--servers", "1,2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| cores | servers | drain")
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["1", "2"]
