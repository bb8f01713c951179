"""Where the errors of drivers have their SQLSTATE: also of drivers that these tests do not install."""

from __future__ import annotations

from typing import Any

import pytest

from pulse.app.transactions.drivers import USUAL, errors_told_apart, state_of
from pulse.errors import SchemaError


class Psycopg2Error(Exception):
    """Its connections are those of SQLAlchemy's and Django's older installations."""

    def __init__(self, said: str, pgcode: str | None) -> None:
        super().__init__(said)
        self.pgcode = pgcode


class Wrapping(Exception):
    """As SQLAlchemy has it."""

    def __init__(self, orig: Exception) -> None:
        super().__init__(f"({type(orig).__name__}) {orig}")
        self.orig = orig


PG8000 = Exception({"S": "ERROR", "C": "3F000", "M": 'schema "pulse" does not exist'})


@pytest.mark.parametrize(("error", "found"), [
    (Psycopg2Error("no schema\nCONTEXT: x", "3F000"), ("3F000", "no schema")),
    (Wrapping(Psycopg2Error("no schema", "3F000")), ("3F000", "no schema")),
    (PG8000, ("3F000", 'schema "pulse" does not exist')),
    (Wrapping(PG8000), ("3F000", 'schema "pulse" does not exist')),
    (Psycopg2Error("the network is away", None), ("", "the network is away")),
    (Exception({"code": 5}), ("", "{'code': 5}")),
    (Exception(), ("", "")),
])  # fmt: skip
def test_each_driver_has_a_place_for_it(error: Exception, found: tuple[str, str]) -> None:
    assert state_of(error) == found


def test_what_it_means_is_raised() -> None:
    with pytest.raises(SchemaError, match="this database is not pulse's") as caught, errors_told_apart(None, USUAL):
        raise Wrapping(PG8000)
    cause: Any = caught.value.__cause__
    assert cause.orig is PG8000
