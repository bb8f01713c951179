"""How long to rest between pieces of work that may take but a share of the time."""

from __future__ import annotations


def rest_s(took_s: float, share: float, most_s: float) -> float:
    """
    The pause after work that took so long, for the work to fill *share* of the time.

    Args:
        took_s: How long it took, seconds.
        share: Of the time, above 0 and at most 1.
        most_s: Longest pause, whatever it took.
    """
    return min(took_s * (1 / share - 1), most_s)
