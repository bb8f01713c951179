"""Whether to test everything, or only what a change must pass."""

from __future__ import annotations

import os
from typing import Final

WHOLE: Final = os.environ.get("PULSE_TEST_WHOLE", "") not in {"", "0"}
