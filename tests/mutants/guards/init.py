"""What pulse does as process 1 of a container, and what its workers are called there."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

INIT: Final = Guarded(
    "pulse.system.pid1",
    {
        "unit/test_init.py::test_process_1_ends_at_sigterm": [
            ("obey_sigterm", "signal.signal(signal.SIGTERM, _leave)", "pass"),
            ("_leave", "os._exit(_SIGNALED + number)", "pass"),
        ],
        "unit/test_init.py::test_whose_status_is_wanted_is_kept": [
            ("bury_orphans", "if pid not in kept:", "if True:"),
            ("bury_orphans", "os.waitpid(pid, os.WNOHANG)", "pass"),
        ],
        "unit/test_init.py::test_who_is_not_process_1_keeps_its_signals": [
            ("obey_sigterm", "if is_init():", "if True:"),
        ],
    },
    is_part=True,
)
NAMES: Final = Guarded(
    "pulse.worker.options",
    {
        "unit/test_worker_parts.py::test_worker_names_in_containers": [
            ("worker_name", "if namespace in {0, _MACHINE} else", "if True else"),
        ],
    },
    is_part=True,
)
