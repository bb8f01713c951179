"""Every fault, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.chaos.faults import database_faults, handler_faults, peer_faults, process_faults
from tests.chaos.faults.fault import Fault

FAULTS: Final[Mapping[str, type[Fault]]] = {
    kind.name: kind
    for kind in sorted(
        (
            one
            for module in (process_faults, database_faults, peer_faults, handler_faults)
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, Fault) and hasattr(one, "row")
        ),
        key=lambda one: one.row,
    )
}
