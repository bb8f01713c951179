"""What may break a rule for good, by name and with a reason: ``lists/exceptions.toml``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rules.tree import Offence

LIST: Final = ".ci/rules/lists/exceptions.toml"


class Exceptions:
    """
    The exceptions, and which of them were needed.

    Args:
        reasons: For each section: name of a path or class, and why it may break the rule.

    """

    def __init__(self, reasons: Mapping[str, Mapping[str, str]]) -> None:
        self._reasons = reasons
        self._used: set[tuple[str, str]] = set()

    def has(self, section: str, name: str) -> bool:
        """Whether *name* is excepted; it counts as needed from now on."""
        if name not in self._reasons.get(section, {}):
            return False
        self._used.add((section, name))
        return True

    def filter(self, section: str, offences: Iterable[Offence]) -> Iterator[Offence]:
        """Those of *offences* whose path is not excepted."""
        return (offence for offence in offences if not self.has(section, offence.path))

    def unneeded(self) -> Iterator[Offence]:
        """Each exception that nothing needed, and each without a reason; ask when all rules have run."""
        for section, reasons in self._reasons.items():
            for name, reason in reasons.items():
                if not reason.strip():
                    yield Offence(LIST, 0, f"[{section}] {name}: an exception needs a reason")
                if (section, name) not in self._used:
                    yield Offence(LIST, 0, f"[{section}] {name}: breaks the rule no more: take it off the list")
