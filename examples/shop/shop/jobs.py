"""
All handlers of the shop, since a module registers its own when it is imported.

    pulse worker shop.jobs:app
"""

from __future__ import annotations

from shop import mail, payments, pictures, reports
from shop.app import app

__all__ = ["app", "mail", "payments", "pictures", "reports"]
