"""Before the first claim: what is void, and what may be somebody's who lives."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_BOOTS: Final = "unit/test_reconcile.py::"
_ROWS: Final = "store/test_reconcile_rows.py::"

RECONCILE: Final = Guarded(
    "pulse_actors.dispatcher.liveness.startup",
    {
        _BOOTS + "test_a_boot_is_over_when_it_was_last_seen_before_this_kernel_started": [
            ("ended_boots", "boot != host.boot and ", ""),
            ("ended_boots", " and ago_s > uptime_s + margin_s", ""),
            ("ended_boots", "uptime_s + margin_s", "uptime_s"),
        ],
        _ROWS + "test_what_cannot_be_running_is_given_back": [
            ("bury_forgotten", "process is not None and processes.lives(*process)", "process is not None"),
            ("bury_forgotten", "process is not None and processes.lives(*process)", "False"),
            ("bury_forgotten", "elif process is not None:", "elif False:"),
            ("bury_forgotten", "named.host == host.id and ", ""),
            ("bury_forgotten", " and named.boot in over", ""),
            ("bury_forgotten", "named is not None and named.host == host.id and named.boot in over", "False"),
            ("bury_forgotten", "TWIN_SWEEPS * sweep_s", "-1e12"),
        ],
        _ROWS + "test_who_is_no_worker_of_this_form": [
            ("bury_forgotten", "if process is not None and processes.lives(*process)", "if processes.lives(*process)"),
            ("bury_forgotten", "elif process is not None:", "elif True:"),
            ("bury_forgotten", "named is not None and ", ""),
        ],
        _ROWS + "test_who_dies_beside_its_dispatcher_is_charged": [
            ("bury_forgotten", "if boot else", "if True else"),
        ],
        _ROWS + "test_at_the_start_of_the_whole_nobody_is_charged": [
            ("bury_forgotten", "if boot else", "if False else"),
        ],
        _ROWS + "test_a_restart_of_the_machine_is_charged_to_nobody": [
            (
                "bury_forgotten",
                "_end(store, identity, EndingKind.RELEASED, reason)",
                "_end(store, identity, kind, reason)",
            ),
        ],
        _ROWS + "test_claims_that_were_committed_late": [
            (
                "bury_late",
                "(process := identities.process_of(host, identity)) is not None",
                "(process := identities.process_of(host, identity)) or True",
            ),
            ("bury_late", "and not processes.lives(*process)", ""),
            ("bury_late", "and not has_met(identity)", ""),
            ("bury_late", "if dead:", "if False:"),
        ],
        _ROWS + "test_another_supervisor_may_bury_its_own": [
            ("bury_late", "        await anyio.sleep(OTHERS_S)\n", ""),
        ],
    },
)
