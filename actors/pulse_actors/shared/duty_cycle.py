"""How long to rest between pieces of work that may take only a share of the time."""

from __future__ import annotations


def rest_s(took_s: float, share: float, most_s: float) -> float:
    """
    The pause after work that took so long, so that the work takes *share* of the time.

    Args:
        took_s: How long it took, seconds.
        share: Share of the time, above 0 and at most 1.
        most_s: Longest pause, whatever it took.
    """
    return min(took_s * (1 / share - 1), most_s)
