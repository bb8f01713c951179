"""deploy/citus/build: what it refuses; that it builds is tested where Citus is (tests/citus)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.systems.system_kit import ROOT

BUILD = ROOT / "deploy" / "citus" / "build"
CONTROL = Path("src/backend/distributed/citus.control")


@pytest.mark.parametrize(("words", "said"), [
    ([], "usage: deploy/citus/build SOURCES PREFIX"),
    (["empty", "new"], "empty has no src/backend/distributed/citus.control: it is not a copy of Citus"),
    (["sources", "empty"], "empty is there already: give a new directory"),
    (["sources", "new"], "no pg_config: install postgresql-server-dev-NN, or set PG_CONFIG"),
])  # fmt: skip
def test_what_it_refuses(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "sources" / CONTROL).parent.mkdir(parents=True)
    (tmp_path / "sources" / CONTROL).touch()
    env = {"PATH": "/usr/bin:/bin", "PG_CONFIG": "/nowhere/pg_config"}
    done = subprocess.run(["sh", BUILD, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"citus/build: {said}\n")
    assert not (tmp_path / "new").exists()
