"""
A nightly pipeline: one job for each source, then transform, load and report. It reads NIGHTLY/in, writes NIGHTLY/out.

    pulse-supervisor &
    NIGHTLY=/tmp/nightly pulse worker examples.nightly:app --processes 2 &
    pulse ctl schedules list
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pulse

FOLDER = Path(os.environ.get("NIGHTLY", "nightly"))

app = pulse.App()


@app.handler("nightly.extract", max_attempts=3, retry_on={FileNotFoundError: pulse.Discard})
def extract(source: str) -> tuple[str, list[int]]:
    """The numbers of one source, a line each."""
    return source, [int(line) for line in (FOLDER / "in" / source).read_text("utf-8").split()]


@app.handler("nightly.transform")
def transform(ctx: pulse.Context) -> dict[str, int]:
    """From all sources. If one of them has failed, this job is canceled, and so is the one that waits for it."""
    extracted = (parent.result_as(tuple[str, list[int]]) for parent in ctx.parents())
    return {source: sum(numbers) for source, numbers in extracted}


@app.handler("nightly.load")
def load(ctx: pulse.Context, day: str) -> None:
    """Replaces what is there of that day at once: a second attempt writes the same again."""
    (transformed,) = ctx.parents()
    totals = transformed.result_as(dict[str, int])
    part, whole = (FOLDER / "out" / f"{day}{end}" for end in (".part", ""))
    part.write_text("".join(f"{source} {totals[source]}\n" for source in sorted(totals)), "utf-8")
    part.replace(whole)


@app.handler("nightly.report")
def report(ctx: pulse.Context, day: str) -> str:
    """Runs in any case."""
    failed = [parent for parent in ctx.parents() if parent.status != pulse.Status.COMPLETED]
    lines = sorted(f"{parent.name}: {parent.last_error}".partition("\n")[0] for parent in failed)
    return "\n".join([f"{day}: {'failed' if failed else 'loaded'}", *lines])


@app.schedule("nightly", cron="30 2 * * *", timezone="Europe/Berlin", overlap="skip")
@app.handler("nightly")
def nightly(ctx: pulse.Context) -> str:
    """Submits the others. Each attempt submits the same jobs, for the sources that the first one has found."""
    day, *sources = ctx.step("look", look, ctx.occurrence)
    batch = pulse.Batch()
    extracts = [batch.add(pulse.call(extract, source), id=ctx.child_id(source)) for source in sources]
    transformed = batch.add(pulse.call(transform), after=extracts, id=ctx.child_id("/transform"))
    loaded = batch.add(pulse.call(load, day), after=[transformed], id=ctx.child_id("/load"))
    # After all of them, so that it can say which one has failed.
    everything = [*extracts, transformed, loaded]
    reported = batch.add(pulse.call(report, day), after=everything, on_failure="run", id=ctx.child_id("/report"))
    with pulse.Client() as client:
        client.submit_batch(batch)
    return str(reported)


def look(occurrence: datetime | None) -> list[str]:
    """The day that the run is about, and the sources that are there."""
    day = (occurrence or datetime.now(UTC)).date()
    return [day.isoformat(), *sorted(path.name for path in (FOLDER / "in").iterdir())]
