"""
A shop on FastAPI and SQLAlchemy: an order and the job that confirms it exist both or neither.

    uvicorn examples.fastapi.web:web
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any, TypedDict
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

import pulse
from examples.fastapi.database import Base, Order, make_engine
from examples.fastapi.jobs import confirm

LIMIT_CENTS = 100_000


class State(TypedDict):
    """What all requests of a process share."""

    client: pulse.AsyncClient
    new_session: Any


class OrderIn(BaseModel):
    """What a customer sends."""

    customer: str
    cents: int


class Accepted(BaseModel):
    """What a customer gets."""

    order: int
    job: UUID


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[State]:
    """
    One client and one engine for each process, in its event loop.

    The client finds the server by itself, or by PULSE_CONNECT. It connects when it is first used: the application
    starts, and takes orders, without a server of pulse, too.
    """
    engine = make_engine()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    try:
        async with aclosing(pulse.connect()) as client:
            yield {"client": client, "new_session": lambda: AsyncSession(engine, expire_on_commit=False)}
    finally:
        await engine.dispose()


async def transaction(request: Request) -> AsyncIterator[AsyncSession]:
    """A session in a transaction, which is committed before the answer is sent, or rolled back by an exception."""
    async with request.state.new_session() as session, session.begin():
        yield session


def the_client(request: Request) -> pulse.AsyncClient:
    """The client of this process; tests may override this dependency."""
    client: pulse.AsyncClient = request.state.client
    return client


web = FastAPI(lifespan=lifespan)
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
Client = Annotated[pulse.AsyncClient, Depends(the_client)]


@web.post("/orders", status_code=201)
async def create(given: OrderIn, session: Transaction) -> Accepted:
    """Both are there, or neither: a refused order takes its job with it."""
    order = Order(customer=given.customer, cents=given.cents)
    session.add(order)
    await session.flush()  # it has its id
    job_id = await pulse.sql.submit_async(session, pulse.call(confirm, order.id), priority=5)
    if order.cents > LIMIT_CENTS:
        raise HTTPException(422, f"a payment of {order.cents} cents was declined")
    return Accepted(order=order.id, job=job_id)


@web.get("/jobs/{job_id}")
async def show(job_id: UUID, client: Client) -> dict[str, object]:
    """How far a job is."""
    job = await client.get(job_id)
    return {"status": job.status, "attempts": job.attempts, "result": job.result, "error": job.last_error}


@web.exception_handler(pulse.NotFoundError)
async def not_found(_request: Request, error: pulse.NotFoundError) -> JSONResponse:
    """There is no such job (any more)."""
    return JSONResponse({"detail": error.message}, 404)


@web.exception_handler(pulse.NobodyAnswersError)
async def away(_request: Request, _error: pulse.NobodyAnswersError) -> JSONResponse:
    """The server is away: jobs are safe in the database meanwhile."""
    return JSONResponse({"detail": "the job queue is away for a moment"}, 503)
