"""
The web application: it takes orders and pictures.

    uvicorn shop.web:web
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, TypedDict
from uuid import UUID, uuid4

import anyio
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, PositiveInt
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

import pulse
from shop.database import Customer, Order, Sessions, make_engine
from shop.mail import Mail, send_mail
from shop.payments import charge
from shop.pictures import WIDTHS, path_of, thumbnail

CENTS = 200  # of a print


class State(TypedDict):
    """What all requests of a process share."""

    client: pulse.AsyncClient
    sessions: Sessions


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[State]:
    """One client and one engine for each process. Both connect when they are first used."""
    engine = make_engine()
    async with aclosing(pulse.connect()) as client:
        yield {"client": client, "sessions": async_sessionmaker(engine)}
    await engine.dispose()


async def transaction(request: Request) -> AsyncIterator[AsyncSession]:
    """The transaction of a request: committed before the answer is sent, or rolled back by an exception."""
    sessions: Sessions = request.state.sessions
    async with sessions.begin() as session:
        yield session


def the_client(request: Request) -> pulse.AsyncClient:
    """The client of this process."""
    client: pulse.AsyncClient = request.state.client
    return client


web = FastAPI(title="Shop", lifespan=lifespan)
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
Client = Annotated[pulse.AsyncClient, Depends(the_client)]


class Deposit(BaseModel):
    """What a customer pays in advance."""

    email: str
    cents: PositiveInt


@web.post("/customers", status_code=201)
async def pay_in(paid: Deposit, session: Transaction) -> Deposit:
    """From now on it can be spent."""
    await session.merge(Customer(**paid.model_dump()))
    return paid


class NewOrder(BaseModel):
    """What a customer wants."""

    email: str
    picture: UUID
    prints: PositiveInt = 1


class PlacedOrder(BaseModel):
    """An order, and whether it is paid."""

    order: int
    cents: int
    is_paid: bool


@web.post("/orders", status_code=201)
async def place(wanted: NewOrder, session: Transaction) -> PlacedOrder:
    """The order and its jobs are committed together, or none of them. No server of pulse has to be there."""
    if await session.get(Customer, wanted.email) is None:
        raise HTTPException(404, f"there is no customer {wanted.email}")
    order = Order(**wanted.model_dump(), cents=CENTS * wanted.prints)
    session.add(order)
    await session.flush()  # now it has its id
    mail = Mail(to=order.email, subject=f"Order {order.id}", text=f"We have your order: {order.prints} prints.")
    await pulse.sql.submit_async(session, pulse.call(charge, order.id), priority=5)
    await pulse.sql.submit_async(session, pulse.call(send_mail, mail))
    return PlacedOrder(order=order.id, cents=order.cents, is_paid=False)


@web.get("/orders/{number}")
async def show(number: int, session: Transaction) -> PlacedOrder:
    """How far an order is."""
    order = await session.get(Order, number)
    if order is None:
        raise HTTPException(404, f"there is no order {number}")
    return PlacedOrder(order=order.id, cents=order.cents, is_paid=order.paid_at is not None)


class UploadedPicture(BaseModel):
    """A picture, and the jobs that make its thumbnails."""

    picture: UUID
    jobs: list[UUID]


@web.post("/pictures", status_code=202)
async def upload(request: Request, client: Client) -> UploadedPicture:
    """The picture is a file and no row, so there is no transaction to submit in: the client asks the server."""
    picture = uuid4()
    await anyio.Path(path_of(picture)).write_bytes(await request.body())
    jobs = await client.submit_many([pulse.call(thumbnail, picture, width) for width in WIDTHS])
    return UploadedPicture(picture=picture, jobs=jobs)


@web.get("/pictures/{picture}/{width}")
async def thumbnail_of(picture: UUID, width: int) -> FileResponse:
    """A thumbnail, as soon as it is there."""
    path = path_of(picture, width)
    if not await anyio.Path(path).exists():
        raise HTTPException(404, "it is not there yet")
    return FileResponse(path, media_type="image/webp")


@web.get("/jobs/{job_id}")
async def show_job(job_id: UUID, client: Client) -> dict[str, object]:
    """How far a job is."""
    job = await client.get(job_id)
    return {"status": job.status, "attempts": job.attempts, "error": job.last_error}


@web.exception_handler(pulse.NotFoundError)
async def not_found(_request: Request, error: pulse.NotFoundError) -> JSONResponse:
    """There is no such job, or no longer."""
    return JSONResponse({"detail": error.message}, 404)


@web.exception_handler(pulse.NobodyAnswersError)
async def unavailable(_request: Request, _error: pulse.NobodyAnswersError) -> JSONResponse:
    """The server of pulse is down. Orders are taken all the same: they need the database only."""
    return JSONResponse({"detail": "not now: the job queue is restarted"}, 503)
