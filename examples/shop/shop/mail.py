"""E-mails, by the HTTP interface of a mail service."""

from __future__ import annotations

import httpx2
from pydantic import BaseModel

import pulse
from shop.app import app

STAFF = "staff@shop.example"


class Mail(BaseModel):
    """An e-mail."""

    to: str
    subject: str
    text: str


@app.handler(
    "send-mail", topic="mail", max_attempts=8, timeout_s=30, retry_on={httpx2.TransportError: "exponential:1:600"}
)
async def send_mail(ctx: pulse.Context, mail: Mail, client: httpx2.AsyncClient = pulse.provided()) -> None:
    """The service sends a message with a key that it has seen before no second time."""
    answer = await client.post("/messages", json=mail.model_dump(), headers={"Idempotency-Key": str(ctx.job_id)})
    if answer.status_code == 422:
        raise pulse.Discard(f"the mail service refuses it: {answer.text}")
    if answer.status_code == 429:
        raise pulse.RetryAfter(float(answer.headers.get("Retry-After", 60)), "the mail service is busy")
    answer.raise_for_status()


@app.on_dead_letter
async def tell_staff(ctx: pulse.Context, job: pulse.FailedJob, client: httpx2.AsyncClient = pulse.provided()) -> None:
    """A job that is given up, for whatever reason, is one for people."""
    mail = Mail(to=STAFF, subject=f"{job.name} was given up", text=f"job {job.id}\n{job.error}")
    answer = await client.post("/messages", json=mail.model_dump(), headers={"Idempotency-Key": str(ctx.job_id)})
    answer.raise_for_status()
