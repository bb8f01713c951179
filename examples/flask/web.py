"""
A web application on Flask: a request submits a job, another one asks for its result.

    PULSE_CONNECT=unix:///run/pulse/pulse.sock flask --app examples.flask.web run
    gunicorn --preload --workers 4 'examples.flask.web:create_app()'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flask import Flask, current_app, request

import pulse
from examples.flask.jobs import digest

Answer = tuple[dict[str, object], int]


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """
    Make the application.

    Its settings are in ``app.config``: PULSE_CONNECT, PULSE_USER and PULSE_PASSWORD, which FLASK_PULSE_CONNECT and so
    on in the environment set; without them the client looks for a server by itself.
    """
    app = Flask(__name__)
    app.config.from_mapping(PULSE_CONNECT=None, PULSE_USER=None, PULSE_PASSWORD=None)
    app.config.from_prefixed_env()
    app.config.from_mapping(config)
    # It connects when it is first used, and again in each process that is forked from this one; threads share it.
    app.extensions["pulse"] = pulse.Client(
        app.config["PULSE_CONNECT"], user=app.config["PULSE_USER"], password=app.config["PULSE_PASSWORD"]
    )
    app.add_url_rule("/digests", view_func=create, methods=["POST"])
    app.add_url_rule("/digests/<uuid:job_id>", view_func=show)
    app.register_error_handler(pulse.NotFoundError, not_found)
    app.register_error_handler(pulse.BadRequestError, bad_request)
    app.register_error_handler(pulse.NobodyAnswersError, away)
    return app


def client() -> pulse.Client:
    """The client of the application."""
    found: pulse.Client = current_app.extensions["pulse"]
    return found


def create() -> Answer:
    """Submit: arguments that the handler does not take are refused here, not by a worker."""
    job_id = client().submit(digest, request.get_json())
    return {"job": str(job_id)}, 202


def show(job_id: UUID) -> Answer:
    """How far it is."""
    job = client().get(job_id)
    return {"status": job.status, "result": job.result}, 200


def not_found(error: pulse.NotFoundError) -> Answer:
    """There is no such job (any more)."""
    return {"error": error.message}, 404


def bad_request(error: pulse.BadRequestError) -> Answer:
    """The handler does not take that."""
    return {"error": error.message}, 400


def away(_error: pulse.NobodyAnswersError) -> Answer:
    """The server is away."""
    return {"error": "the job queue is away for a moment"}, 503
