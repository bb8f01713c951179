"""Random values of the protocol's own types, as a well-meaning peer sends them."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, inspect

from pulse.common.backoff import MAX_BACKOFF

OWN: Final = "fuzz-"  # how the names of all topics begin that are the fuzzer's
TOPICS: Final = tuple(f"{OWN}{number}" for number in range(8))
NAMES: Final = ("fuzzed", "other", "naïve ☃", "a" * 200)
WORDS: Final = ("", "a", "default", "x" * 60, "Ωmega", "\N{SNOWMAN}", "it's", "%s {} \\", "a\nb", "true", "0")
JSON: Final = ("{}", '{"n": 1}', '{"a": [1, 2.5, null, true, "x"]}', '{"n": "\\u2603"}', '{"a": {"b": {"c": []}}}')
CRONS: Final = ("* * * * *", "*/5 * * * *", "0 3 * * 1-5", "@daily", "*/10 * * * * *")
BACKOFFS: Final = ("quadratic", "quadratic:2", "exponential:1:60", "fixed:5", "list:1,2,3")
STATUSES: Final = ("PENDING", "RUNNING", "COMPLETED", "RETRYING", "DEAD_LETTERED", "CANCELED")
POLICY: Final[Mapping[str, Sequence[object]]] = {
    "max_attempts": (1, 5, 10_000, None), "max_crashes": (1, 3, None), "backoff": (*BACKOFFS, None),
    "timeout_s": (1.0, 3600.0, None), "stall_s": (60.0, None), "lease_s": (60.0, None),
    "retention_s": (86_400.0, None), "retention_dead_s": (86_400.0, None), "ageing_s": (60.0, None),
}  # fmt: skip
LONG: Final = 40  # longest text and list that is made where the type sets no lower limit
_HEX: Final = "0123456789abcdef"
_WORKER: Final = "abcABC019._-"


_info: Final = functools.cache(inspect.type_info)


class Maker:
    """Makes bodies; *ids* are jobs and schedules that exist, for fields that name one, and may grow meanwhile."""

    def __init__(self, rng: random.Random, ids: Sequence[bytes] = ()) -> None:
        self.rng = rng
        self.ids = ids
        self._named: Mapping[str, Callable[[], object]] = {
            "topic": self.topic,
            "topics": lambda: rng.sample(TOPICS, rng.randint(1, 4)),
            "name": lambda: rng.choice(NAMES),
            "names": lambda: list(NAMES),
            "args": lambda: rng.choice(JSON),
            "text": lambda: rng.choice(JSON),
            "progress": lambda: rng.choice(JSON),
            "cron": lambda: rng.choice(CRONS),
            "timezone": lambda: rng.choice(("UTC", "Europe/Berlin")),
            "backoff": lambda: rng.choice(BACKOFFS),
            "catch_up": lambda: rng.choice(("skip", "latest", "all")),
            "overlap": lambda: rng.choice(("allow", "skip", "queue", "cancel")),
            "every": lambda: rng.choice((60.0, 3600.0)),  # what fires more often would be a load of its own
            "jitter_s": lambda: rng.choice((0.0, 1.0, 30.0)),
            "wait_s": lambda: rng.choice((0.0, 0.1)),
            "status": lambda: rng.choice(STATUSES),
            "prefix": lambda: "".join(rng.choices(_HEX, k=rng.randint(1, 8))),
            "policy": self.policy,
            "options": lambda: rng.sample(sorted(POLICY), 2),
            "after": lambda: None,
            "protocol": lambda: 1,
        }

    def body(self, kind: type[Struct]) -> dict[str, object]:
        made = self.struct(_info(kind), sparse=True)
        assert isinstance(made, dict)
        return made

    def topic(self) -> str:
        return self.rng.choice(TOPICS) if self.rng.random() < 0.95 else f"{OWN}{self.rng.getrandbits(24):x}"

    def identity(self) -> bytes:
        if self.ids and self.rng.random() < 0.8:
            return self.rng.choice(self.ids)
        return self.rng.randbytes(16)

    def policy(self) -> dict[str, object]:
        return {name: self.rng.choice(POLICY[name]) for name in self.rng.sample(sorted(POLICY), self.rng.randint(1, 3))}

    def struct(self, info: inspect.Type, *, sparse: bool) -> object:
        assert isinstance(info, inspect.StructType)
        fields = {field.encode_name: field for field in info.fields}
        if info.array_like:
            return [self._field(name, field) for name, field in fields.items()]
        chosen = [one for one, field in fields.items() if field.required or self.rng.random() < (0.3 if sparse else 1)]
        return {name: self._field(name, fields[name]) for name in chosen}

    def _field(self, name: str, field: inspect.Field) -> object:
        named = None if isinstance(field.type, inspect.IntType) else self._named.get(name)
        made = self.value(field.type) if named is None else named()
        longest = _longest(field.type)
        return made[:longest] if isinstance(made, str) else made

    def value(self, kind: inspect.Type) -> object:  # noqa: PLR0911 - one for each kind of type
        rng = self.rng
        match kind:
            case inspect.UnionType(options):
                return self.value(rng.choice([one for one in options if not _is_unset(one)]))
            case inspect.ListType(item, min_length):
                return [self.value(item) for _ in range(self._length(min_length or 0, 3))]
            case inspect.DictType(key, value):
                return {self.value(key): self.value(value) for _ in range(rng.randint(0, 3))}
            case inspect.TupleType(items):
                return [self.value(item) for item in items]
            case inspect.StructType():
                return self.struct(kind, sparse=True)
            case inspect.EnumType(cls):
                return rng.choice([member.value for member in cls])
            case inspect.LiteralType(values):
                return rng.choice(values)
            case _:
                return self._scalar(kind)

    def _scalar(self, kind: inspect.Type) -> object:  # noqa: PLR0911 - one for each kind of type
        rng = self.rng
        match kind:
            case inspect.IntType():
                low = kind.ge if kind.ge is not None else 0
                return rng.choice(
                    (low, low + 1, kind.le if kind.le is not None else 2**31, rng.randint(low, low + 100))
                )
            case inspect.FloatType():
                least = kind.ge if kind.ge is not None else kind.gt if kind.gt is not None else 0.0
                return rng.choice((least + 1e-6, kind.le or 1e9, rng.uniform(max(least, 0.001), 100.0), 1))
            case inspect.BytesType():
                return self.identity()
            case inspect.StrType():
                return self._text(kind)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.NoneType():
                return None
            case _:
                return self.value_of_any()

    def value_of_any(self) -> object:
        return self.rng.choice(({}, {}, {"a": 1}, None, 1, "x", [1, 2]))

    def _text(self, kind: inspect.StrType) -> str:
        if kind.pattern is not None:
            return self._matching(kind.pattern)
        low, high = kind.min_length or 0, kind.max_length or MAX_BACKOFF
        text = self.rng.choice(WORDS)
        return (text or "x" * low)[:high] if len(text) < low else text[:high]

    def _matching(self, pattern: str) -> str:
        for text in (
            "".join(self.rng.choices(_WORKER, k=self._length(1, 64))),
            "-".join("".join(self.rng.choices(_HEX, k=length)) for length in (2, 32, 16, 2)),
        ):
            if re.match(pattern, text):
                return text
        raise AssertionError(f"nothing is made for the pattern {pattern}: say how here")

    def _length(self, low: int, high: int) -> int:
        return self.rng.randint(low, max(low, min(high, LONG)))


def _longest(kind: inspect.Type) -> int | None:
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((one.max_length for one in options if isinstance(one, inspect.StrType)), None)


def _is_unset(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.CustomType) and kind.cls is msgspec.UnsetType
