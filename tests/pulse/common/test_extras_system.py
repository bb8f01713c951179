"""An installation of the SDK alone: each command of the server says in one line which extra it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pulse.common.test_extras import LIBRARIES
from tests.support.commandline.cli import DEADLINE_S, environment

HIDE = "import sys; sys.modules.update(dict.fromkeys({libraries!r})); from {module} import main; sys.exit(main())"


def run(tmp_path: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command where no library of an extra is installed."""
    code = HIDE.format(libraries=LIBRARIES, module=module)
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=DEADLINE_S,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(("line", "said"), [
    ("migrate", "pulse migrate needs asyncpg: pip install 'pulse-supervisor[server]'"),
    ("check", "pulse check needs asyncpg: pip install 'pulse-supervisor[server]'"),
    ("passwd ann", "pulse passwd needs bcrypt: pip install 'pulse-supervisor[server]'"),
    ("metrics --listen 9999", "pulse metrics needs prometheus_client: pip install 'pulse-supervisor[metrics]'"),
    ("ui", "pulse ui needs starlette, uvicorn, jinja2, sse_starlette, bcrypt: pip install 'pulse-supervisor[ui]'"),
    ("demo", "pulse demo needs trio, asyncpg, croniter: pip install 'pulse-supervisor[server]'"),
    ("bridge nats --stream S --consumer c --handler h",
     "pulse bridge nats needs nats: pip install 'pulse-supervisor[nats]'"),
    ("worker os:path --reload", "--reload needs watchfiles: pip install 'pulse-supervisor[reload]'"),
    ("worker os:path --backend trio", "--backend trio needs trio: pip install 'pulse-supervisor[trio]'"),
])  # fmt: skip
def test_commands(tmp_path: Path, line: str, said: str) -> None:
    done = run(tmp_path, "pulse.cli.main", *line.split())
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"pulse: {said}\n")


@pytest.mark.process
def test_the_supervisor(tmp_path: Path) -> None:
    done = run(tmp_path, "pulse_supervisor.main")
    said = "pulse-supervisor: this needs trio, asyncpg, croniter: pip install 'pulse-supervisor[server]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
