"""The tables of the shop. DATABASE_URL says where they are: postgresql://HOST/NAME, the database of pulse."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import DateTime, ForeignKey, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Sessions: TypeAlias = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    """What all tables have in common."""


class Customer(Base):
    """Somebody who has paid in advance."""

    __tablename__ = "customers"

    email: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Order(Base):
    """Prints of a picture; *paid_at* is set by the job that charges the customer."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(ForeignKey(Customer.email))
    picture: Mapped[UUID]
    prints: Mapped[int]
    cents: Mapped[int]
    paid_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


def make_engine() -> AsyncEngine:
    """One for each process: it connects when it is first used."""
    return create_async_engine(_url())


def make_tables() -> None:
    """Those that are missing. A shop that changes has migrations instead."""
    engine = create_engine(_url())
    Base.metadata.create_all(engine)
    engine.dispose()


def _url() -> URL:
    return make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")


if __name__ == "__main__":
    make_tables()
