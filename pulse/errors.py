"""
Every error that pulse raises on purpose, one tree.

The docstring of a class is its default message. On the wire an error has a code; ``error_from_code`` is the inverse of
``PulseError.code``.
"""

from __future__ import annotations

__all__ = [
    "BadRequestError",
    "ConfigError",
    "ConflictError",
    "EmbeddedError",
    "ForbiddenError",
    "HandlerError",
    "InlineError",
    "InternalError",
    "InvalidTransitionError",
    "NoHandlerError",
    "NobodyAnswersError",
    "NotFoundError",
    "PathError",
    "ProtocolError",
    "PulseError",
    "RefusedError",
    "ResultError",
    "SchemaError",
    "StaleAttemptError",
    "StatementError",
    "StatementTimeoutError",
    "TooLargeError",
    "TransactionError",
    "UnauthorizedError",
    "UnavailableError",
    "UnhandledNameWarning",
    "UnsupportedVersionError",
    "error_from_code",
]


class PulseError(Exception):
    """pulse could not do what was asked."""

    code = "internal"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (self.__doc__ or "").strip().split("\n", 1)[0])

    @property
    def message(self) -> str:
        """One line for a person: what, which value, what is allowed."""
        return str(self.args[0])


class UnhandledNameWarning(UserWarning):
    """Workers serve the topic of a submitted job, but none of them has a handler of its name."""


class ConfigError(PulseError):
    """A setting has a value that is not allowed."""


class PathError(PulseError):
    """A directory or socket path cannot be used."""


class EmbeddedError(PulseError):
    """The embedded PostgreSQL cannot run."""


class SchemaError(PulseError):
    """The database schema cannot be used by this version of pulse."""


class HandlerError(PulseError):
    """A handler is not declared in a way that pulse can run."""


class NoHandlerError(PulseError, RuntimeError):
    """No handler runs here."""


class ResultError(PulseError):
    """A job has no result, or one of another type than was asked for."""


class TransactionError(PulseError):
    """The transaction of a caller's own connection cannot take a statement any more."""


class InlineError(PulseError):
    """Without a server, the testing kit cannot do that."""


class StaleAttemptError(PulseError):
    """The attempt no longer holds its job: it was ended, and another one may run already."""


class NobodyAnswersError(PulseError):
    """Nobody answers on the socket."""


class RefusedError(PulseError):
    """The other side refused the request; the subclass says why."""


class BadRequestError(RefusedError):
    """The request is malformed."""

    code = "bad_request"


class UnauthorizedError(RefusedError):
    """Credentials are missing or wrong."""

    code = "unauthorized"


class ForbiddenError(RefusedError):
    """This peer may not do that."""

    code = "forbidden"


class NotFoundError(RefusedError):
    """There is no such thing."""

    code = "not_found"


class ConflictError(RefusedError):
    """Something else is there already."""

    code = "conflict"


class InvalidTransitionError(RefusedError):
    """The job's status does not allow this move."""

    code = "invalid_transition"


class TooLargeError(RefusedError):
    """The request is larger than the server accepts."""

    code = "too_large"


class UnsupportedVersionError(RefusedError):
    """The other side speaks another version of the protocol."""

    code = "unsupported_version"


class UnavailableError(RefusedError):
    """The database is away; nothing was changed, try again."""

    code = "unavailable"


class StatementTimeoutError(UnavailableError):
    """A statement waited too long: a lock is held on one of its rows, or it was too large."""


class StatementError(UnavailableError):
    """
    The database answers, and refuses a statement; nothing was changed, unless it may be done.

    Attributes:
        sqlstate: Five characters, possibly of a future PostgreSQL.
        statement: Its name in ``pulse/store/sql``, or how it begins.
        is_value: The given values can never be stored; else the cause may be temporary.
        may_be_done: It was probably carried out, and only its answer cannot be read.
        code: ``bad_request`` for such values, and for errors that SQL functions raise; else ``unavailable``.
    """

    def __init__(
        self, message: str, *, sqlstate: str, statement: str, is_value: bool = False, may_be_done: bool = False
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.statement = statement
        self.is_value = is_value
        self.may_be_done = may_be_done
        self.code = BadRequestError.code if is_value or sqlstate.startswith("P0") else UnavailableError.code


class InternalError(RefusedError):
    """The server failed; its log says why."""

    code = "internal"


class ProtocolError(PulseError):
    """
    The peer sent bytes that are not the protocol.

    Attributes:
        code: ``bad_request``, ``too_large`` or ``unsupported_version``: what to answer before the connection is closed.
        request: Number of the request at fault, None when the frame itself is broken.
    """

    def __init__(self, message: str, code: str = "bad_request", request: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.request = request


_REFUSALS: dict[str, type[RefusedError]] = {
    kind.code: kind
    for kind in (
        BadRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        InvalidTransitionError,
        TooLargeError,
        UnsupportedVersionError,
        UnavailableError,
        InternalError,
    )
}


def error_from_code(code: str, message: str) -> RefusedError:
    """The error that an ``error`` frame stands for; an unknown code becomes InternalError."""
    return _REFUSALS.get(code, InternalError)(message)
