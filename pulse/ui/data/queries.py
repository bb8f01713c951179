"""
The dashboard's requests, over the socket like any client's: each has a time limit, and equal ones are sent once.

A page answers within two seconds whatever is down, so no question may take longer than ``ANSWER_S``. A question that
reads is shared for a second among all who ask the same, so that many open tabs cost the dispatcher as much as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import anyio

import pulse
from pulse.client.discovery import Refusal, find_servers, nobody_answers, supervisors_beside, why_not
from pulse.errors import NobodyAnswersError
from pulse.ops.status import SUPERVISOR_S

Body = Mapping[str, object]
SharedAnswer: TypeAlias = "asyncio.Task[dict[str, object]]"

ANSWER_S: Final = 1.2  # the rest of the two seconds is for the page
CHANGE_S: Final = 1.7  # what changes something is asked alone, on a connection of the person who does it
RESTART_S: Final = 5.0
SHARED_S: Final = 1.0  # a page is no older than that
_NO_LIMIT_S: Final = 600.0  # of the client's own: each question has a shorter one
_MOST_SHARED: Final = 256  # answers kept for others, by question


class LazyConnection:
    """
    A connection that is made when it is first needed, and given up at the first trouble: the next question makes one.

    Args:
        who: The server, as messages call it.
        find: Finds the server; None leaves it to the client.
        behalf: The user who asks.
    """

    def __init__(self, who: str, find: Callable[[], str | Path | None], behalf: str | None = None) -> None:
        self._who = who
        self._find = find
        self._behalf = behalf
        self._client: pulse.AsyncClient | None = None
        self._asking: dict[pulse.AsyncClient, int] = {}

    async def ask(self, kind: str, body: Body, *, within_s: float, repeatable: bool) -> dict[str, object]:
        """
        One question.

        Raises:
            NobodyAnswersError: No answer within *within_s*; what is not repeatable may have been done.
            RefusedError: The server says no.
        """
        client = self._client
        if client is None:
            client = self._client = pulse.connect(self._find(), timeout_s=_NO_LIMIT_S, behalf=self._behalf)
        self._asking[client] = self._asking.get(client, 0) + 1
        try:
            with anyio.fail_after(within_s):
                return await client.request(kind, body, repeatable=repeatable)
        except TimeoutError:
            self._give_up(client)
            raise NobodyAnswersError(f"the {self._who} gives no answer within {within_s:g} s") from None
        except NobodyAnswersError:
            self._give_up(client)
            raise
        finally:
            await self._left(client)

    async def aclose(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None and client not in self._asking:
            await client.aclose()

    def _give_up(self, client: pulse.AsyncClient) -> None:
        if self._client is client:
            self._client = None

    async def _left(self, client: pulse.AsyncClient) -> None:
        """The last request on a connection that was given up closes it."""
        self._asking[client] -= 1
        if not self._asking[client]:
            del self._asking[client]
            if client is not self._client:
                with anyio.CancelScope(shield=True):
                    await client.aclose()


class Questions:
    """
    All that the dashboard asks.

    Args:
        server: The server that the user named: its socket or its address; None looks for it.
    """

    def __init__(self, server: str | Path | None) -> None:
        self._server = server
        self._dispatcher = LazyConnection("dispatcher", lambda: server)
        self._supervisor = LazyConnection("supervisor", self._find_supervisor)
        self._shared: OrderedDict[str, tuple[float, SharedAnswer]] = OrderedDict()

    async def ask(self, kind: str, body: Body | None = None, *, within_s: float = ANSWER_S) -> dict[str, object]:
        """What the dispatcher says; an answer of the last second serves others who ask the same."""
        question = _question(kind, body)
        now_s = time.monotonic()
        known = self._shared.get(question)
        if known is not None and now_s - known[0] < SHARED_S:
            return await asyncio.shield(known[1])
        task = asyncio.ensure_future(self._dispatcher.ask(kind, body or {}, within_s=within_s, repeatable=True))
        task.add_done_callback(lambda _: self._settle(question, task, known))
        self._shared[question] = (now_s, task)
        self._shared.move_to_end(question)
        while len(self._shared) > _MOST_SHARED:
            self._shared.popitem(last=False)
        return await asyncio.shield(task)

    def last(self, kind: str, body: Body | None = None) -> tuple[float, dict[str, object]] | None:
        """The newest answer to a question that is remembered, and how old it is, in seconds."""
        began_s, task = self._shared.get(_question(kind, body), (0.0, None))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return time.monotonic() - began_s, task.result()

    def _settle(self, question: str, task: SharedAnswer, before: tuple[float, SharedAnswer] | None) -> None:
        """What failed is asked again by the next one; until then the answer of before is the newest."""
        if (
            task.cancelled() or task.exception() is None
        ):  # the asker may have gone: an error that nobody takes is no news
            return
        if self._shared.get(question, (0.0, None))[1] is task:
            del self._shared[question]
            if before is not None:
                self._shared[question] = before

    async def ask_fresh(self, kind: str, body: Body | None = None, *, within_s: float) -> dict[str, object]:
        """The same for what must be new and is not shared: the pages of a walk, a stack."""
        return await self._dispatcher.ask(kind, body or {}, within_s=within_s, repeatable=True)

    async def change(self, kind: str, body: Body, *, behalf: str, within_s: float = CHANGE_S) -> dict[str, object]:
        """Let the dispatcher do something, for *behalf*; what was known before is not shown any more."""
        async with contextlib.aclosing(LazyConnection("dispatcher", lambda: self._server, behalf)) as link:
            try:
                return await link.ask(kind, body, within_s=within_s, repeatable=False)
            finally:
                self._shared.clear()

    async def restart(self, name: str, *, behalf: str) -> dict[str, object]:
        """Let the supervisor restart a process, for *behalf*."""
        async with contextlib.aclosing(LazyConnection("supervisor", self._find_supervisor, behalf)) as link:
            return await link.ask("actors.restart", {"name": name}, within_s=RESTART_S, repeatable=False)

    async def ask_supervisor(self) -> dict[str, object]:
        """How the supervisor and its processes are."""
        return await self._supervisor.ask("status", {}, within_s=SUPERVISOR_S, repeatable=True)

    async def aclose(self) -> None:
        """Close both connections."""
        for _, task in self._shared.values():
            task.cancel()
        self._shared.clear()
        await self._dispatcher.aclose()
        await self._supervisor.aclose()

    def _find_supervisor(self) -> Path:
        """The first socket of a supervisor that may be tried; beside the dispatcher's: each queue has its own."""
        refusals: list[Refusal] = []
        for target in supervisors_beside(find_servers(self._server)):
            reason = why_not(target) or (None if target.path.exists() else "no such file")
            if reason is None:
                return target.path
            refusals.append(Refusal(target, reason))
        raise nobody_answers(refusals)


def _question(kind: str, body: Body | None) -> str:
    return f"{kind} {sorted((body or {}).items())!r}"
