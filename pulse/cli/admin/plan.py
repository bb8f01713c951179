"""What ``pulse migrate --plan`` shows: the steps of an upgrade, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from pulse.cli.output.render import Cell, Column, Line, Screen, Table, write_document
from pulse.common.text import count
from pulse.ops.doctor.finding import shown_bytes

if TYPE_CHECKING:
    from pulse.store.admin.upgrade.plan import StepState, UpgradePlan

_COLUMNS: Final = (
    Column("version", right=True),
    Column("step"),
    Column("state"),
    Column("runs", leave_out=1),
    Column("lock", leave_out=2),
    Column("table", leave_out=3),
    Column("rows", right=True, leave_out=4),
    Column("size", right=True, leave_out=5),
    Column("what it does", least=20, leave_out=6),
)


def show_plan(plan: UpgradePlan, schema: str, *, as_json: bool) -> None:
    """Print a plan for *schema*, a name as SQL has it."""
    if as_json:
        write_document({"found": plan.found, "wanted": plan.wanted, "steps": [as_document(one) for one in plan.steps]})
        return
    click.echo(headline_of(plan, schema))
    if plan.steps:
        Screen().table(Table(_COLUMNS, [_row(one) for one in plan.steps]))


def headline_of(plan: UpgradePlan, schema: str) -> str:
    """The plan in a sentence."""
    if plan.found == 0:
        return f"the schema {schema} is not there: pulse migrate installs version {plan.wanted}"
    if plan.found >= plan.wanted:
        return f"schema {schema} is at version {plan.found}: nothing to do"
    left = f"{sum(not one.noted.is_done for one in plan.steps)} of {count(len(plan.steps), 'step')}"
    return f"schema {schema} is at version {plan.found}, this pulse brings {plan.wanted}: {left} to do"


def as_document(one: StepState) -> Mapping[str, Any]:
    """A step as JSON has it."""
    step = one.step
    return {
        "version": step.version, "name": step.name, "what": step.what, "kind": step.kind.value, "lock": step.lock,
        "table": step.table, "rows": one.rows, "size_bytes": one.size_bytes, "state": state_of(one),
        "rows_done": one.noted.rows,
    }  # fmt: skip


def state_of(one: StepState) -> str:
    """``done``, ``under way`` or ``to do``."""
    if one.noted.is_done:
        return "done"
    return "under way" if one.noted.reached is not None else "to do"


def _row(one: StepState) -> Line:
    step, state = one.step, state_of(one)
    rows = f"{one.noted.rows:,} of {one.rows or 0:,}" if state == "under way" else _shown(one.rows)
    size = "" if one.size_bytes is None else shown_bytes(one.size_bytes)
    texts = (
        str(step.version), step.name, state, step.kind.value, step.lock, step.table or "", rows, size, step.what
    )  # fmt: skip
    return [Cell(text) for text in texts]


def _shown(rows: int | None) -> str:
    return "" if rows is None else f"{rows:,}"
