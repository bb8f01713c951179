"""``python register.py WORD…``: the harness itself, by its own Python, to which pulse is one more system."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "PULSE_BENCH_PYTHON"  # the variable that names pulse's own interpreter


def main() -> int:
    """Register pulse, and run what is asked for."""
    adapters = importlib.import_module("bench_harness.adapters")

    def launch(manifest: object, overrides: object) -> object:
        env = adapters._base_env(manifest, overrides)  # noqa: SLF001 - as the harness's own launchers do
        return adapters.LaunchSpec(argv=[os.environ[PYTHON], "-m", "bench.adapter"], env=env, cwd=str(ROOT))

    adapters.ADAPTERS["pulse"] = adapters.AdapterEntry(
        bench_dir=ROOT / "bench" / "adapter", builder=lambda _skip: None, launcher=launch
    )
    return int(importlib.import_module("bench_harness.orchestrator").main() or 0)


if __name__ == "__main__":
    sys.exit(main())
