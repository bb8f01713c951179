"""The shop's table; where its database is, SHOP_DATABASE says in the environment: postgresql+asyncpg://HOST/NAME."""

from __future__ import annotations

import os
from datetime import datetime

from sqlalchemy import DateTime
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """What all tables have in common."""


class Order(Base):
    """An order; *confirmed_at* is set by its job."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    confirmed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


def make_engine() -> AsyncEngine:
    """One for each process: it connects when it is first used."""
    return create_async_engine(os.environ["SHOP_DATABASE"])
