"""``pulse ctl status``: ask the supervisor and the dispatcher at once, and show what they know, whatever is down."""

from __future__ import annotations

import time
from typing import Final

import click

from pulse.cli.lazy import examples
from pulse.cli.output.render import Screen, write_document
from pulse.cli.server import ServerHandle, current_server, nobody_of
from pulse.cli.system.status_page import show_status
from pulse.errors import NobodyAnswersError, PulseError
from pulse.ops.doctor.finding import document_of, is_well
from pulse.ops.doctor.running import findings
from pulse.ops.status import DISPATCHER_S, SUPERVISOR_S, StatusAnswers, TimedCall
from pulse.protocol.answers import StatusAnswer, read
from pulse.system import processes

WHOLE_S: Final = 1.65  # of the 2 s from the start of the interpreter, which may take half a second, to its end
LEAST_S: Final = 1.0  # where that takes longer: an answer that comes late is worth more than none


@click.command(epilog=examples("pulse ctl status", "pulse ctl status --json | jq .jobs"))
@click.option("--json", "as_json", is_flag=True, help="Print the whole as one JSON document.")
def status(*, as_json: bool) -> None:
    """
    Show supervisor, actors, database, gate, workers, counts of jobs, and what is wrong; within 2 seconds.

    Ends with exit code 1 while something is wrong, as `pulse doctor` does; warnings do not count.
    """
    answers = ask_both(current_server(), max(LEAST_S, WHOLE_S - processes.age_s()))
    supervisor, dispatcher = answers.supervisor, answers.dispatcher
    if isinstance(dispatcher, PulseError) and (isinstance(supervisor, PulseError) or not supervisor):
        raise _neither(supervisor, dispatcher) if isinstance(supervisor, PulseError) else dispatcher
    known = read(StatusAnswer, answers.merged)
    found = findings(known, answers.silent)
    if as_json:
        write_document({**answers.merged, "findings": list(map(document_of, found))})
    else:
        show_status(known, found, Screen(), time.time())
    if not is_well(found):
        raise click.exceptions.Exit(1)


def ask_both(server: ServerHandle, within_s: float = SUPERVISOR_S) -> StatusAnswers:
    """The answers of supervisor and dispatcher, or why there are none; both are asked at once, within a time limit."""
    supervisor_s, dispatcher_s = min(SUPERVISOR_S, within_s), min(DISPATCHER_S, within_s)
    if server.elsewhere() is not None:  # the dispatcher includes its supervisor's answer
        return StatusAnswers({}, TimedCall(lambda: server.ask("status"), server.timeout_s).answer())
    supervisor = TimedCall(lambda: server.ask_supervisor("status", timeout_s=supervisor_s), supervisor_s)
    dispatcher = TimedCall(lambda: server.ask("status", timeout_s=dispatcher_s), dispatcher_s)
    return StatusAnswers(supervisor.answer(), dispatcher.answer())


def _neither(supervisor: PulseError, dispatcher: PulseError) -> PulseError:
    nobody: list[NobodyAnswersError] = []
    for error in (dispatcher, supervisor):
        if not isinstance(error, NobodyAnswersError):
            return error
        nobody.append(error)
    return nobody_of(*nobody)
