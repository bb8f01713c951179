"""Verdicts on this installation: Python, libraries, settings, limits, the kernel; and the reading of the facts."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from pulse.common.text import similar_names
from pulse.ops.doctor.finding import Finding, State, verdict_of

DISTRIBUTION: Final = "pulse-supervisor"
OLDEST_PYTHON: Final = (3, 11)
FDS_AROUND: Final = 64  # of an actor: the database, the bus, the log, what Python opens
FDS_PER_PEER: Final = 2  # its socket and its pidfd
FEW_FDS: Final = 1024  # what a shell mostly gives; some hundred workers and clients fill it
_NEAR: Final = 0.8
_PREFIX: Final = "PULSE_"
# Of PulseAudio, and what pulse itself reads besides its settings.
_OF_OTHERS: Final = frozenset(
    {"PULSE_SERVER", "PULSE_SINK", "PULSE_SOURCE", "PULSE_COOKIE", "PULSE_BINARY", "PULSE_CLIENTCONFIG", "PULSE_PROP",
     "PULSE_CONFIG_PATH", "PULSE_SCRIPT", "PULSE_DLPATH", "PULSE_STATE_PATH", "PULSE_RUNTIME_PATH",
     "PULSE_LATENCY_MSEC",
     "PULSE_PROP_OVERRIDE", "PULSE_NO_SIMD", "PULSE_LOG", "PULSE_LOG_SYSLOG", "PULSE_LOG_JOURNAL", "PULSE_CONFIG"}
)  # fmt: skip
_REQUIREMENT: Final = re.compile(
    r"""([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=\s*([0-9.]+))?.*?(?:extra\s*==\s*['"]([\w-]+)['"])?\s*$"""
)
_SO_PEERPIDFD: Final = 77


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library: what it is called, its oldest version that will do, the extra that wants it ('' for all)."""

    name: str
    oldest: str
    extra: str


@dataclass(frozen=True, slots=True)
class DescriptorLimits:
    """Of the process that holds the sockets: open files, how many it may have, and how many peers it serves."""

    whose: str
    open_fds: int | None
    most_fds: int
    peers: int | None


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the kernel can: tell of a process' end by descriptor, and say whose a connection is by one."""

    pidfd: bool
    peer_pidfd: bool


def installation(
    version: str, python: tuple[int, ...], needed: Sequence[Requirement], there: Mapping[str, str]
) -> Finding:
    """
    Whether all libraries are there, and none is too old.

    Args:
        version: Of pulse.
        python: Version of Python.
        needed: Requirements of the distribution.
        there: Installed versions, by name in lower case.
    """
    wrong: list[str] = []
    if python[:2] < OLDEST_PYTHON:
        wrong.append(f"Python {_dotted(python)} is too old: {_dotted(OLDEST_PYTHON)} or newer is needed")
    missing: dict[str, list[str]] = {}
    for one in needed:
        found = there.get(one.name.lower())
        if found is None:
            missing.setdefault(one.extra, []).append(one.name)
        elif one.oldest and _numbers(found) < _numbers(one.oldest):
            wrong.append(f"{one.name} {found} is too old: {one.oldest} or newer is needed")
    wrong += [f"{name} is missing" for name in missing.get("", [])]
    extras = sorted({one.extra for one in needed} - {""})
    complete = ", ".join(extra for extra in extras if extra not in missing) or "none"
    absent = [f"extra {extra} lacks {', '.join(missing[extra])}" for extra in extras if extra in missing]
    text = f"pulse {version} on Python {_dotted(python[:3])}, extras: {complete}"
    verdict = verdict_of("installation", wrong, [], text, f"pip install --upgrade '{DISTRIBUTION}[server]'")
    if wrong or not absent:
        return verdict
    return Finding("installation", State.OK, text, details=tuple(absent))


def configuration(problem: str | None, file: Path | None, env: Mapping[str, str], known: Sequence[str]) -> Finding:
    """
    Whether the settings can be read, and no variable looks like a typing error.

    Args:
        problem: Why the settings are refused.
        file: The config file.
        env: The environment.
        known: Names of the settings.
    """
    wrong = problem.splitlines() if problem else []
    slips = [f"{name} is no setting; {near} is" for name, near in near_misses(env, known)]
    where = (
        f"read from {file} and the environment"
        if file is not None
        else "read from the environment; there is no config file"
    )
    return verdict_of("configuration", wrong, slips, where, "docs/operations.md has a table of all settings.")


def near_misses(env: Mapping[str, str], known: Sequence[str]) -> list[tuple[str, str]]:
    """Variables that look like a setting but are none, each with that setting."""
    settings = [f"{_PREFIX}{name.upper()}" for name in known]
    found: list[tuple[str, str]] = []
    for name in sorted(env):
        if name.upper().startswith(_PREFIX) and name not in settings and name not in _OF_OTHERS:
            near = similar_names(name.upper(), settings, most=1, least=_NEAR)
            found += [(name, near[0])] if near else []
    return found


def limits(facts: DescriptorLimits | None) -> Finding:
    """Whether there are descriptors enough for the workers and clients that come."""
    if facts is None:
        return Finding("limits", State.SKIPPED, "the limits of the dispatcher cannot be seen from here")
    peers = facts.peers or 0
    needed = FDS_AROUND + FDS_PER_PEER * peers
    used = f"{facts.open_fds:,} of " if facts.open_fds is not None else ""
    words = f"{facts.whose}: {used}{facts.most_fds:,} open files (ulimit -n), workers connected: {peers}"
    is_full = facts.open_fds is not None and facts.open_fds > 0.9 * facts.most_fds
    is_small = facts.most_fds < 2 * needed or facts.most_fds < FEW_FDS
    return verdict_of(
        "limits",
        [words] if is_full or facts.most_fds < needed else [],
        [words] if is_small else [],
        words,
        "Raise it by LimitNOFILE= in the unit, or ulimit -n; each worker takes two, each client one.",
    )


def kernel(facts: Abilities) -> Finding:
    """Whether deaths can be proved."""
    if not facts.pidfd:
        return Finding(
            "kernel",
            State.WRONG,
            "the kernel has no pidfd_open: a worker's death is known by its lapsed lease only",
            advice=("Linux 5.3 or newer has it; some sandboxes (old seccomp profiles of containers) forbid it.",),
        )
    if not facts.peer_pidfd:
        text = "the kernel tells of deaths by pidfd; without SO_PEERPIDFD (6.5) by pid and start time"
        return Finding("kernel", State.OK, text)
    return Finding("kernel", State.OK, "the kernel tells of deaths by pidfd, and whose a connection is")


def required() -> list[Requirement]:
    """What this distribution asks for, of the extras that a server has; nothing where it is not installed as one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        matches = [_REQUIREMENT.match(text) for text in metadata.requires(DISTRIBUTION) or []]
        found = [Requirement(match[1], match[2] or "", match[3] or "") for match in matches if match is not None]
        return [one for one in found if one.extra not in {"dev", "all", "docs"} and one.name != DISTRIBUTION]
    return []


def installed(needed: Sequence[Requirement]) -> dict[str, str]:
    """The versions of those that are there."""
    found: dict[str, str] = {}
    for one in needed:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[one.name.lower()] = metadata.version(one.name)
    return found


def limits_of(pid: int | None, peers: int | None) -> DescriptorLimits | None:
    """Of the dispatcher where there is one, else of what would be started from here; None: not to be seen."""
    if pid is None:
        return DescriptorLimits(
            "a server started from here", None, resource.getrlimit(resource.RLIMIT_NOFILE)[0], peers=peers
        )
    try:
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        return DescriptorLimits(f"dispatcher, pid {pid}", len(os.listdir(f"/proc/{pid}/fd")), most, peers=peers)  # noqa: PTH208 - only their number counts
    except OSError:
        return None


def abilities() -> Abilities:
    """Try it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return Abilities(pidfd=False, peer_pidfd=False)
    one, other = socket.socketpair()
    with one, other:
        try:
            os.close(one.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return Abilities(pidfd=True, peer_pidfd=False)
    return Abilities(pidfd=True, peer_pidfd=True)


def this_python() -> tuple[int, ...]:
    """Version of this Python."""
    return tuple(sys.version_info[:3])


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
