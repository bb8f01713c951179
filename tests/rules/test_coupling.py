"""Rule 4: who assigns to what, how far a chain reaches, how wide records and calls are."""

from __future__ import annotations

import pytest

from rules import coupling
from tests.rules.kit import said

OTHER = "class Other:\n    def __init__(self):\n        self.open = True\n"


def module(text: str) -> dict[str, str]:
    return {"pulse/a.py": text, "pulse/other.py": OTHER}


@pytest.mark.parametrize(
    "statement",
    ["other.open = False", "other.open += 1", "del other.open", "x, other.open = 1, 2", "setattr(other, 'open', 1)"],
)
def test_nobody_assigns_to_what_is_of_another_module(statement: str) -> None:
    """In whatever way, though not to its own ``self``, nor to classes of the same module."""
    offences = said(coupling.check, module(f"def f(other):\n    {statement}\n"))
    assert offences == [
        "pulse/a.py:2: other.open is assigned from outside: let its owner do that, or pass it in when it is made"
    ]
    assert said(coupling.check, module(f"{OTHER}def f(other):\n    {statement}\n")) == []


@pytest.mark.parametrize("declared", ["open: bool", "__slots__ = ('open',)", "def f(self):\n        self.open = 1"])
def test_a_module_may_change_what_its_own_classes_declare(declared: str) -> None:
    assert said(coupling.check, module(f"class Mine:\n    {declared}\n\ndef f(mine):\n    mine.open = False\n")) == []


def test_objects_of_libraries_are_excepted_by_path_and_attribute() -> None:
    """Elsewhere, and of another name, it is an offence still."""
    text = "def f(context):\n    context.verify_mode = 1\n"
    reasons = {"foreign_attributes": {"pulse/a.py: verify_mode": "an option of ssl.SSLContext"}}
    assert said(coupling.check, {"pulse/a.py": text}, reasons=reasons) == []
    assert len(said(coupling.check, {"pulse/b.py": text}, reasons=reasons)) == 1


def test_chains_end_at_the_neighbour() -> None:
    """``self.a.b`` is the furthest; a longer chain counts once, and only from ``self``."""
    text = "class A:\n    def f(self, x):\n        x.a.b.c.d()\n        return self.a.b()\n"
    assert said(coupling.check, module(text)) == []
    assert said(coupling.check, module(text.replace("self.a.b()", "self.a.b.c.d()"))) == [
        "pulse/a.py:4: self.a.b.c.d: reaches through a neighbour; ask the neighbour, or be given it"
    ]


@pytest.mark.parametrize(
    "head", ["@dataclass(frozen=True)\nclass R:", "class R(NamedTuple):", "class R(msgspec.Struct):"]
)
def test_records_have_twelve_fields_at_most(head: str) -> None:
    """Class variables do not count, and other classes may declare what they like."""
    fields = "".join(f"    f{number}: int\n" for number in range(12))
    assert said(coupling.check, module(f"{head}\n{fields}    g: ClassVar[int] = 1\n")) == []
    wide = f"{head}\n{fields}    g: int\n"
    (offence,) = said(coupling.check, module(wide))
    assert offence.endswith("R has 13 fields; at most 12 are allowed")
    assert said(coupling.check, module(wide), reasons={"wide_records": {"R": "a row"}}) == []
    assert said(coupling.check, module(f"class R:\n{fields}    g: int\n")) == []


def test_constructors_take_eight_arguments_at_most() -> None:
    text = "class A:\n    def __init__(self, a, b, c, *, d, e, f, g, h):\n        pass\n"
    assert said(coupling.check, module(text)) == []
    assert said(coupling.check, module(text.replace("h)", "h, i)"))) == [
        "pulse/a.py:2: A() takes 9 arguments; at most 8 are allowed"
    ]


def test_objects_are_made_with_keywords_beyond_three() -> None:
    """Those of classes of the product, of whatever module; functions and other classes are not counted."""
    text = "f(1, 2, 3, 4)\nint(1, 2, 3, 4)\nOther(1, 2, 3, d=4)\n"
    assert said(coupling.check, module(text)) == []
    assert said(coupling.check, module(text.replace("d=4", "4"))) == [
        "pulse/a.py:3: Other(…) with 4 arguments by position; beyond 3 they need keywords"
    ]
