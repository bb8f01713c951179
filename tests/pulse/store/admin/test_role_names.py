"""Which prefixes roles may have."""

from __future__ import annotations

import pytest

from pulse.errors import ConfigError
from pulse.store.admin.roles import checked_prefix


def test_prefixes() -> None:
    assert checked_prefix("shop_") == "shop_"
    for refused in ("", "7up_", "pg_", "Shop_", "a-b"):
        with pytest.raises(ConfigError, match="the prefix of roles is"):
            checked_prefix(refused)
