"""A result as the ``report`` frame carries it, and how much room it takes there. Pure."""

from __future__ import annotations

from typing import Final, TypeAlias

from pulse.app.outcome import Detail

__all__ = ["OVERHEAD_BYTES", "WireResult", "cut_down", "size_of"]

WireResult: TypeAlias = "tuple[bytes, int, str, Detail] | tuple[bytes, int, str, Detail, dict[str, object]]"
OVERHEAD_BYTES: Final = 96  # of a result on the wire beside its text: id, numbers, names, keys
_PLAIN_RESULT: Final = 4  # elements; a fifth one is extra


def size_of(result: WireResult) -> int:
    """A close upper bound of its bytes on the wire."""
    detail = result[3]
    size = OVERHEAD_BYTES
    if isinstance(detail, str):
        size += len(detail) if detail.isascii() else len(detail.encode())
    elif isinstance(detail, tuple):
        size += sum(map(_size_of_text, detail))
    if len(result) == _PLAIN_RESULT:
        return size
    return size + OVERHEAD_BYTES + sum(map(_size_of_text, result[4].values()))


def cut_down(result: WireResult, max_bytes: int) -> WireResult:
    """Of a result that does not fit into a frame of *max_bytes* what does: without its stack, else that it does not."""
    job_id, attempt, outcome, detail = result[:4]
    if len(result) != _PLAIN_RESULT and "stack" in result[4]:
        extra = {key: value for key, value in result[4].items() if key != "stack"}
        without: WireResult = (job_id, attempt, outcome, detail, extra)
        if size_of(without) + OVERHEAD_BYTES <= max_bytes:
            return without
    text = f"{'result' if outcome == 'ok' else outcome} of about {size_of(result)} bytes; a frame holds {max_bytes}"
    return (job_id, attempt, "error", f"too large: {text}")


def _size_of_text(part: object) -> int:
    if not isinstance(part, str):
        return 0
    return len(part) if part.isascii() else len(part.encode())
