"""Requests, rows and jobs in one transaction, which is rolled back after the test: no server of pulse is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from pulse.testing import InlineJob, run_submitted_async, submitted_async
from shop.database import Order, Sessions, make_engine
from shop.jobs import app
from shop.mail import send_mail
from shop.payments import charge
from shop.web import transaction, web

pytestmark = pytest.mark.anyio


class Shop(NamedTuple):
    """The application, in the transaction of a test."""

    browser: httpx2.AsyncClient
    session: AsyncSession
    sessions: Sessions

    async def order(self, email: str, prints: int = 1) -> httpx2.Response:
        """Place an order."""
        return await self.browser.post("/orders", json={"email": email, "picture": str(uuid4()), "prints": prints})

    async def run(self) -> dict[str, InlineJob]:
        """Run what was submitted; returns the jobs by name."""
        taken = httpx2.MockTransport(lambda _: httpx2.Response(202))
        async with httpx2.AsyncClient(transport=taken, base_url="http://mail") as mail_service:
            values: dict[Any, Any] = {Sessions: self.sessions, httpx2.AsyncClient: mail_service}
            return {job.name: job for job in await run_submitted_async(self.session, app, values=values)}


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """What the shop commits here is a savepoint in a transaction that is rolled back."""
    engine = make_engine()
    async with engine.connect() as connection, connection.begin() as whole:
        sessions = async_sessionmaker(connection, join_transaction_mode="create_savepoint")

        async def inside() -> AsyncIterator[AsyncSession]:
            async with sessions.begin() as session:
                yield session

        web.dependency_overrides[transaction] = inside
        async with (
            httpx2.AsyncClient(transport=httpx2.ASGITransport(web), base_url="http://shop") as browser,
            sessions() as session,
        ):
            await browser.post("/customers", json={"email": "ada@shop.example", "cents": 1000})
            yield Shop(browser, session, sessions)
        web.dependency_overrides.clear()
        await whole.rollback()
    await engine.dispose()


async def test_an_order_is_charged_and_mailed(shop: Shop) -> None:
    """Its jobs are there with the order; the job that charges adds one for the receipt."""
    placed = (await shop.order("ada@shop.example", prints=3)).json()
    assert placed["cents"] == 600
    assert await submitted_async(shop.session, charge, order_id=placed["order"])
    assert len(await submitted_async(shop.session, send_mail)) == 1
    assert (await shop.run())["charge"].result == {"left": 400}
    receipts = await submitted_async(shop.session, send_mail)
    assert [job.status for job in receipts] == ["COMPLETED", "COMPLETED"]
    assert (await shop.browser.get(f"/orders/{placed['order']}")).json()["is_paid"]


async def test_who_has_too_little_is_not_charged(shop: Shop) -> None:
    """The job is given up at once, and its transaction with it."""
    placed = (await shop.order("ada@shop.example", prints=6)).json()
    job = (await shop.run())["charge"]
    assert (job.status, job.attempts) == ("DEAD_LETTERED", 1)
    assert job.last_error == f"order {placed['order']} costs 1200 cents, and 1000 are left"
    assert (await shop.session.get_one(Order, placed["order"])).paid_at is None


async def test_a_refused_order_leaves_nothing(shop: Shop) -> None:
    """Neither row nor job."""
    assert (await shop.order("bob@shop.example")).status_code == 404
    assert not await submitted_async(shop.session)
