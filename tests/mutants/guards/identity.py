"""Whether an identity names a living process of this host: by host, boot, namespace, pid and start time."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_IDENTITY: Final = "unit/test_identity.py::"
_ELSEWHERE: Final = _IDENTITY + "test_processes_elsewhere_cannot_be_seen"
_OTHER: Final = _IDENTITY + "test_another_process_of_the_same_pid_is_nobody"
_ALL: Final = "(named.host, named.boot, named.pidns) != (host.id, host.boot, host.pidns)"

IDENTITY: Final = Guarded(
    "pulse_actors.shared.identity",
    {
        _IDENTITY + "test_this_host_is_the_same_each_time": [
            ("this_host", "host_id or _machine()", "_machine()"),
            ("this_host", "host_id or _machine()", "host_id"),
        ],
        _IDENTITY + "test_without_a_machine_id_the_host_name_does": [
            ("_machine", "raw and ", ""),
            ("_machine", ' and raw != "uninitialized"', ""),
        ],
        _IDENTITY + "test_the_machine_id_does_not_show": [
            ("_machine", 'raw and raw != "uninitialized"', "False"),
        ],
        _IDENTITY + "test_a_peer_that_is_gone": [
            ("is_gone", "not peer.pid or peer.start_time", "not peer.pid"),
            ("is_gone", "peer.start_time:", "True:"),
        ],
        _IDENTITY + "test_an_older_kernel_names_the_peer_by_pid": [
            ("pidfd_of", "processes.start_time(peer.pid) != peer.start_time", "True"),
        ],
        _IDENTITY + "test_a_pid_that_was_used_again_is_not_the_peer": [
            ("pidfd_of", "processes.start_time(peer.pid) != peer.start_time", "False"),
            ("pidfd_of", "        os.close(pidfd)\n", ""),
        ],
        _IDENTITY + "test_who_leads_a_group_that_may_be_killed_with_it": [
            (
                "leads_group",
                "os.getpgid(pid) == os.getsid(pid) == pid",
                "os.getpgid(pid) == pid",
            ),
            (
                "leads_group",
                "os.getpgid(pid) == os.getsid(pid) == pid",
                "os.getpgid(pid) == os.getsid(pid)",
            ),
            ("leads_group", "os.getpgid(pid) == os.getsid(pid) == pid", "False"),
        ],
        _IDENTITY + "test_who_comes_over_tcp": [
            ("key_of", "if is_remote(identity):", "if False:"),
            ("key_of", "if is_remote(identity):", "if True:"),
        ],
        _IDENTITY + "test_a_process_that_cannot_be_seen_is_told_apart_by_its_account": [
            ("compose", "peer.start_time if peer.pid else peer.uid", "peer.start_time"),
        ],
        _IDENTITY + "test_what_is_a_session": [
            ("is_session", "given is not None and ", ""),
            ("is_session", "len(given) == _SESSION_BYTES", "True"),
        ],
        _IDENTITY + "test_sessions_differ_by_identity_and_by_boot": [
            ("session_of", ", key=host.boot.encode()", ""),
        ],
        _IDENTITY + "test_what_is_no_identity_has_no_user": [
            ("process_of", "named is None or ", ""),
        ],
        _IDENTITY + "test_a_pid_that_no_process_can_have": [
            ("process_of", " or named.pid <= 0", ""),
            ("process_of", "named.pid <= 0", "named.pid < 0"),
        ],
        _ELSEWHERE: [
            ("process_of", f"or {_ALL} or", "or"),
            ("process_of", _ALL, "(named.boot, named.pidns) != (host.boot, host.pidns)"),
            ("process_of", _ALL, "(named.host, named.pidns) != (host.id, host.pidns)"),
            ("process_of", _ALL, "(named.host, named.boot) != (host.id, host.boot)"),
            ("user_of", "process is None or ", ""),
        ],
        _OTHER: [
            ("user_of", " or not processes.lives(*process)", ""),
        ],
        _IDENTITY + "test_who_is_in_hand": [
            ("is_in_hand", "process is None or ", ""),
            ("is_in_hand", " or not processes.lives(*process)", ""),
            ("is_in_hand", "process is None or not processes.lives(*process)", "True"),
        ],
        _IDENTITY + "test_another_users_process_is_not_in_hand": [
            ("is_in_hand", "        os.kill(process[0], 0)\n", "        pass\n"),
        ],
    },
    without={
        ("is_gone", "peer.pid"): "signal 0 to pid 0 asks for the own group, and that is there",
        ("peer_of", "pid"): "spares two vain looks: there is no process 0, and the kernel says so itself",
    },
)
