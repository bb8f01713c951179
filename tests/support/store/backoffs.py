"""Back-offs in words, some invalid ones, and a policy with every option."""

from __future__ import annotations

from typing import Any, Final

BACKOFFS: Final = (
    "quadratic", "quadratic:0.5", "quadratic:999999999", "exponential", "exponential:2", "exponential:2:60.25",
    "fixed:0", "fixed:999999999.999999", "list:1", "list:1,10,600.5", "list:" + ",".join(["1"] * 248),
)  # fmt: skip
NO_BACKOFFS: Final = (
    "", "linear", "Quadratic", "quadratic:", "quadratic:1:2", "quadratic:-1", "exponential:1:2:3", "exponential:x",
    "fixed", "fixed:", "fixed:-5", "fixed:1e9", "fixed:nan", "fixed:1000000000", "fixed:1,2", "fixed:1\n", "list",
    "list:", "list:1,", "list:1,-2", "list:1;2", " fixed:1", "list:" + ",".join(["1"] * 249),
)  # fmt: skip

FULL: Final[dict[str, Any]] = {
    "max_attempts": 3, "max_crashes": 2, "backoff": "fixed:7", "timeout_s": 1.5, "stall_s": 2.5, "lease_s": 90.0,
    "retention_s": 0.0, "retention_dead_s": 5.0, "ageing_s": 60.0, "limit": "api", "publish": True,
}  # fmt: skip
