"""The release after this one, made up: a copy of the code that brings the next version of the schema."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION
from tests.support.systems.system_kit import ROOT

STEPS: Final = ROOT / "bench" / "upgrade.sql"
_CODE: Final = ("pulse", "actors", "supervisor")
_RELEASES: Final = re.compile(r"^(RELEASES: Final = \{.*)\}$", re.MULTILINE)


def next_schema(sql: str, release: str = "made up") -> str:
    """schema.sql of that release: what the steps make of this one."""
    for old, new in (
        (f"VALUES ({SCHEMA_VERSION}, '{RELEASES[SCHEMA_VERSION]}')", f"VALUES ({SCHEMA_VERSION + 1}, '{release}')"),
        ("    CONSTRAINT jobs_lease ", "    region text DEFAULT 'here',\n\n    CONSTRAINT jobs_lease "),
        ("CONSTRAINT jobs_ran_by ", "CONSTRAINT jobs_region CHECK (region IS NOT NULL),\n    CONSTRAINT jobs_ran_by "),
        (
            "CREATE INDEX idx_jobs_held ",
            "CREATE INDEX jobs_region ON pulse.jobs (region, id);\nCREATE INDEX idx_jobs_held ",
        ),
    ):
        assert sql.count(old) == 1, old
        sql = sql.replace(old, new)
    return sql


def next_release(directory: Path) -> dict[str, str]:
    """Make a copy of the code in *directory* that claims the next version; the environment that has it run."""
    for name in _CODE:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "schema.sql", directory / "schema.sql")
    file = directory / "pulse" / "store" / "admin" / "schema.py"
    changed, times = _RELEASES.subn(rf'\1, {SCHEMA_VERSION + 1}: "made up"}}', file.read_text("utf-8"))
    assert times == 1
    file.write_text(changed, "utf-8")
    versions = file.parent / "upgrade" / "versions"
    versions.mkdir(exist_ok=True)
    shutil.copy(STEPS, versions / f"{SCHEMA_VERSION + 1}.sql")
    paths = directory, directory / "supervisor", directory / "actors", ROOT
    return {"PYTHONPATH": os.pathsep.join(map(str, paths))}
