"""`python -m bench.peers`: measure other job queues side by side with pulse; a table, `--json FILE` for machines."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import asyncpg
from rich.console import Console

from bench.peers.awa_peer import Awa
from bench.peers.celery_peer import Celery
from bench.peers.graphile_peer import Graphile
from bench.peers.install import default_cache
from bench.peers.peer import MeasureError, Peer, Unavailable
from bench.peers.pgboss_peer import PgBoss
from bench.peers.pgqueuer_peer import PgQueuer
from bench.peers.procrastinate_peer import Procrastinate
from bench.peers.pulse_peer import PulseKeepsNothing, PulsePeer
from bench.peers.runner import Plan, turn
from bench.peers.server import Server, shared_server
from bench.peers.table import Record, table
from pulse.errors import PulseError

PEERS: Final[Sequence[type[Peer]]] = (
    PulsePeer,
    PulseKeepsNothing,
    Graphile,
    PgBoss,
    PgQueuer,
    Awa,
    Celery,
    Procrastinate,
)
FAILED: Final = (MeasureError, PulseError, OSError, asyncpg.PostgresError)  # of one turn; the others go on


def main() -> None:
    """Install what is missing, measure in rounds, and print what was found."""
    options = parsed()
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, ended)
    chosen = [made for made in (kind() for kind in PEERS) if made.facts.name in options.peers]
    records = {peer.facts.name: Record(peer.facts) for peer in chosen}
    ready: list[Peer] = []
    for peer in chosen:
        try:
            peer.install(options.cache.resolve())
            ready.append(peer)
        except Unavailable as error:
            records[peer.facts.name].skipped = str(error)
            say(f"{peer.facts.name}: skipped: {error}")
    plan = Plan(jobs=options.jobs, seconds=options.seconds)
    with shared_server() as server:
        machine = machine_of(server)
        for number in range(options.rounds):
            for peer in rotated(ready, number):
                measure(peer, server, number, plan, records[peer.facts.name])
                if options.json:  # a run that is stopped has what there is so far
                    options.json.write_text(document(machine, options, records), "utf-8")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(list(records.values())))
    console.print(f"({machine}; medians of {options.rounds}; settings: docs/performance-peers.md)")


def ended(number: int, _frame: object) -> None:
    """A signal ends the bench like Ctrl-C: everything is stopped and removed first."""
    raise SystemExit(128 + number)


def parsed() -> argparse.Namespace:
    """What was asked for."""
    names = [one.facts.name for one in (made() for made in PEERS)]

    def some(text: str) -> Sequence[str]:
        if unknown := set(text.split(",")) - set(names):
            raise argparse.ArgumentTypeError(
                f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(names)}"
            )
        return text.split(",")

    plan = Plan()
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer (default: %(default)s)")
    parser.add_argument("--peers", type=some, default=names, help=f"some of {','.join(names)} (default: all)")
    parser.add_argument("--jobs", type=int, default=plan.jobs, help="jobs of the drain (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=plan.seconds, help="length of each steady state (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds to this file, too")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="for environments (default: %(default)s)")
    return parser.parse_args()


def measure(peer: Peer, server: Server, number: int, plan: Plan, record: Record) -> None:
    """One turn; a failure is put on record."""
    name = peer.facts.name
    say(f"round {number + 1}, {name}")
    try:
        database = f"{name.replace('-', '_')}_{number}"
        record.rounds.append(turn(peer, server, database, plan, lambda text: say(f"    {text}")))
    except FAILED as error:
        record.failures.append(str(error) or repr(error))
        say(f"    failed: {record.failures[-1]}")


def rotated(peers: Sequence[Peer], number: int) -> Sequence[Peer]:
    """Another one begins in each round."""
    first = number % max(1, len(peers))
    return [*peers[first:], *peers[:first]]


def machine_of(server: Server) -> str:
    """Where all this was measured."""
    cores, memory = os.cpu_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    python = platform.python_version()
    return f"{cores} cores, {memory:.0f} GB, Linux {platform.release()}, Python {python}, PostgreSQL {server.version()}"


def document(machine: str, options: argparse.Namespace, records: Mapping[str, Record]) -> str:
    """All rounds, for machines."""
    asked = {"rounds": options.rounds, "jobs": options.jobs, "seconds": options.seconds}
    peers = {name: record.document() for name, record in records.items()}
    return json.dumps({"machine": machine, **asked, "peers": peers}, indent=1) + "\n"


def say(text: str) -> None:
    """Progress, for who watches."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
