"""
What a handler takes: checks the args of a job against its parameters, and converts them by their annotations.

msgspec converts: what a caller gives to JSON, and the JSON of a job to what the annotations say. A parameter without
annotation, or with one that msgspec does not know, gets the JSON value as it is.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

from pulse.app.context import BatchJob
from pulse.common import json_text
from pulse.common.text import similar_names

__all__ = ["ArgumentError", "BatchParameters", "Parameters", "batch_kind", "resolved"]

# JSON has the same: to convert them would take a third of a typed submit, and a tenth of a worker's time.
_AS_THEY_ARE: Final = frozenset({bool, int, str})
_NEVER: Final = (("", None),)  # the types of no args: no value's class is None
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LISTS: Final = frozenset({list, Sequence})


class ArgumentError(ValueError):
    """Args that a handler does not take; says which, and what is wrong."""


class Parameters:
    """
    The parameters of a handler, without those that a worker fills.

    Args:
        function: The handler's function.
        parameters: Those of its signature.
        filled: Names of those that get the context, or the value of a lifespan.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], filled: AbstractSet[str | None]
    ) -> None:
        self._function = function
        named = [one for one in parameters.values() if one.kind not in _VARIABLE and one.name not in filled]
        self._places = [one.name for one in named if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        self._declared = {one.name: one for one in named}
        self._known = frozenset(self._declared)
        self._required = frozenset(one.name for one in named if one.default is inspect.Parameter.empty)
        self._takes_others = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """The type that each parameter is converted to; read when it is needed first, since it may import much."""
        found: dict[str, Any] = {}
        for name, parameter in self._declared.items():
            if parameter.annotation is not inspect.Parameter.empty:
                kind = type_of(self._function, parameter)
                if json_text.knows_type(kind):
                    found[name] = kind
        return found

    def bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """
        The arguments of a call by name, converted to JSON.

        Raises:
            ArgumentError: The handler cannot be called like that.
        """
        if not args:
            return self.encoded(kwargs)
        if len(args) > len(self._places):
            raise ArgumentError(f"takes {len(self._places)} arguments by position, not {len(args)}")
        given = dict(zip(self._places, args, strict=False))
        twice = next((name for name in given if name in kwargs), None)
        if twice is not None:
            raise ArgumentError(f"argument {twice!r} is given twice")
        return self.encoded({**given, **kwargs})

    def encoded(self, given: Mapping[str, object]) -> dict[str, object]:
        """
        Arguments by name, converted to JSON; each is one that ``decoded`` takes.

        Raises:
            ArgumentError: The handler does not take them.
        """
        self._check_names(given)
        found = dict(given)
        for name, kind in self.types.items():
            if name in found and not _is_as_it_is(found[name], kind):
                try:
                    found[name] = json_text.to_json(found[name], name)
                    json_text.as_type(found[name], kind, name, shown=True)
                except json_text.NotOfTypeError as error:
                    raise ArgumentError(str(error)) from None
        return found

    def decoded(self, given: dict[str, Any]) -> dict[str, Any]:
        """
        The args of a job, each as its annotation says.

        Raises:
            ArgumentError: The handler does not take them. Names the place, not the value, which may be a secret.
        """
        plain = self._plain_types
        for name, kind in plain:
            if name not in given or given[name].__class__ is not kind:
                break
        else:
            if len(given) == len(plain):
                return given  # nearly every one
        self._check_names(given)
        for name, kind in self.types.items():
            if name in given and not _is_as_it_is(given[name], kind):
                try:
                    given[name] = json_text.as_type(given[name], kind, name)
                except json_text.NotOfTypeError as error:
                    raise ArgumentError(str(error)) from None
        return given

    @property
    def names(self) -> list[str]:
        """The names of its parameters, in their order."""
        return list(self._declared)

    def complete(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Arguments that were converted to JSON, as the function would get them, with the defaults of the others."""
        defaults = {name: one.default for name, one in self._declared.items() if name not in self._required}
        return {**defaults, **self.decoded(dict(given))}

    @functools.cached_property
    def _plain_types(self) -> tuple[tuple[str, Any], ...]:
        """The parameters and their types, if args that have exactly these need no conversion."""
        kinds = {name: self.types.get(name) for name in self._declared}
        is_plain = all(any(kind is one for one in _AS_THEY_ARE) for kind in kinds.values())  # some cannot be hashed
        return tuple(kinds.items()) if is_plain else _NEVER

    def _check_names(self, given: Mapping[str, object]) -> None:
        if given.keys() == self._declared.keys():
            return
        if not self._required <= given.keys():
            missing = next(name for name in self._declared if name in self._required and name not in given)
            raise ArgumentError(f"argument {missing!r} is missing; {self._allowed()}")
        if not self._takes_others and not given.keys() <= self._known:
            unknown = next(name for name in given if name not in self._known)
            similar = similar_names(str(unknown), sorted(self._known), 1)
            hint = f"; did you mean {similar[0]!r}?" if similar else f"; {self._allowed()}"
            raise ArgumentError(f"there is no parameter {unknown!r:.100}{hint}")

    def _allowed(self) -> str:
        return f"it takes {', '.join(self._declared) or 'none'}"


class BatchParameters(Parameters):
    """
    The parameters of a handler of batches: its first one takes the jobs, each with all its args in one value.

    Args:
        function, parameters, filled: As of ``Parameters``.

    Attributes:
        jobs: Name of the first parameter.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], filled: AbstractSet[str | None]
    ) -> None:
        super().__init__(function, parameters, filled)
        self.jobs: Final = next(iter(parameters))
        self._first = parameters[self.jobs]
        self._unfilled = sorted(self._required - {self.jobs})

    @functools.cached_property
    def kind(self) -> object:
        """The type of a job's args; Any: they are a dict."""
        try:
            kind = batch_kind(self._function, self._first)
        except TypeError:
            return Any
        return kind if json_text.knows_type(kind) else Any

    @property
    def names(self) -> list[str]:
        """What a function of a job's arguments may take: all of them, in one value."""
        return ["args"]

    def complete(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Args that were converted to JSON, as a job of the batch has them."""
        return {"args": self.decoded(dict(given))}

    def bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """
        The args of one job, converted to JSON: one value of their type, or its fields by name.

        Raises:
            ArgumentError: The handler does not take them.
        """
        if not args:
            return self.encoded(kwargs)
        if len(args) > 1 or kwargs:
            raise ArgumentError("takes one value, which has all args of a job, or these by name")
        return self._encoded(args[0])

    def encoded(self, given: Mapping[str, object]) -> dict[str, object]:
        """
        The args of one job by name, converted to JSON.

        Raises:
            ArgumentError: The handler does not take them.
        """
        return self._encoded(dict(given))

    def decoded(self, given: dict[str, Any]) -> Any:  # noqa: ANN401 - of the type that the handler names
        """
        The args of one job, as the annotation of the jobs says.

        Raises:
            ArgumentError: The handler does not take them. Names the place, not the value, which may be a secret.
        """
        self._check_filled()
        try:
            return json_text.as_type(given, self.kind, "args")
        except json_text.NotOfTypeError as error:
            raise ArgumentError(str(error)) from None

    def _encoded(self, value: object) -> dict[str, object]:
        self._check_filled()
        try:
            found = json_text.to_json(value, "args")
            json_text.as_type(found, self.kind, "args", shown=True)
        except json_text.NotOfTypeError as error:
            raise ArgumentError(str(error)) from None
        if not isinstance(found, dict):
            raise ArgumentError(f"args are {found!r:.100}; an object is allowed")
        return cast("dict[str, object]", found)

    def _check_filled(self) -> None:
        if self._unfilled:
            raise ArgumentError(f"nothing fills the parameter {self._unfilled[0]!r} of a handler of batches")


def batch_kind(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    """
    The type of the args of a job, from the annotation of the jobs; Any: it does not say.

    Raises:
        TypeError: It is no list of BatchJob.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    try:
        found = resolved(function, parameter.annotation)
    except Exception:  # noqa: BLE001 - evaluating an annotation runs code of the user's
        return Any
    if typing.get_origin(found) not in _LISTS:
        raise TypeError(f"is annotated {parameter.annotation!r:.100}")
    (inner,) = typing.get_args(found)
    if inner is BatchJob:
        return Any
    if typing.get_origin(inner) is not BatchJob:
        raise TypeError(f"is annotated {parameter.annotation!r:.100}")
    return typing.get_args(inner)[0]


def _is_as_it_is(value: Any, kind: Any) -> bool:  # noqa: ANN401 - whatever there is
    return type(value) is kind and kind in _AS_THEY_ARE


def type_of(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    """The annotation of *parameter*, evaluated in the function's module; Any if it cannot be."""
    try:
        kind: Any = resolved(function, parameter.annotation)
    except Exception:  # noqa: BLE001 - evaluating an annotation runs code of the user's
        return Any
    return kind | None if parameter.default is None and kind is not Any else kind


def resolved(function: Callable[..., object], annotation: object) -> object:
    """
    One annotation, evaluated in the function's module: it does not matter if the others fail.

    Raises:
        Exception: Whatever evaluating it raises.
    """

    def probe() -> None: ...

    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not hasattr(inner, "__code__") and not hasattr(inner, "__func__"):
        inner = getattr(inner, "__call__", inner)  # noqa: B004 - a callable object: its method knows the globals
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    probe.__annotations__ = {"it": annotation}
    local: dict[str, Any] = {}
    if inspect.isfunction(inner):
        local.update(inspect.getclosurevars(inner).nonlocals)
    return typing.get_type_hints(probe, getattr(inner, "__globals__", {}), local, include_extras=True)["it"]
