"""What all pages of one dashboard share: its options and parts, and the names of what belongs to one request."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pulse.routes import Routes
from pulse.security.credentials import Credentials
from pulse.security.password_login import Logins
from pulse.ui.auth.address import ListenAddress
from pulse.ui.auth.rules import LOCAL_NAMES
from pulse.ui.auth.sessions import BrowserSessions
from pulse.ui.data.bulk_tasks import BulkTasks
from pulse.ui.data.poller import Poller, SystemSnapshot
from pulse.ui.data.queries import Questions

# What the guard puts into the scope of a request that it lets through.
FORM: Final = "pulse.form"  # what a POST brought, {name: [value, ...]}
BODY: Final = "pulse.body"  # what a program posted, bytes
SESSION: Final = "pulse.session"
BEGAN: Final = "pulse.began_s"  # when the request came, on the monotonic clock
OLD: Final = "pulse.old_s"  # of when what the page shows is, Unix seconds, where nobody has told anything newer
PAGE_S: Final = 1.5  # a page waits no longer for news of the whole, if it knows older ones


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """
    How ``pulse ui`` was started.

    Attributes:
        address: Where it listens.
        names: Host names under which it may be called, beside those of this machine.
        credentials: The users that log in; None: by the link that is printed.
        read_only: Nothing can be changed.
        queue: The queue that it is of, where the config file has several.
        routes: The queues, and the topics of each.
    """

    address: ListenAddress
    names: frozenset[str] = frozenset()
    credentials: Credentials | None = None
    read_only: bool = False
    queue: str | None = None
    routes: Routes = field(default_factory=lambda: Routes({}, {}))

    @property
    def others(self) -> Mapping[str, str]:
        """The addresses of the dashboards of other queues, by queue."""
        return self.routes.dashboards_beside(self.queue)

    def check_topic(self, body: Mapping[str, object]) -> None:
        """
        Check the topic that jobs are to get, if *body* has one.

        Raises:
            BadRequestError: It belongs to another queue than the one that this dashboard is of.
        """
        topic = body.get("topic")
        if self.queue is not None and topic is not None:
            self.routes.check(str(topic), self.queue)

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies of one host are shared by its ports, and two dashboards are two."""
        return f"pulse_ui_{self.address.port}"

    @property
    def known_hosts(self) -> frozenset[str]:
        """The names that a Host header may have."""
        host = self.address.host
        own = {host.lower()} if host else set[str]()
        return LOCAL_NAMES | own | {name.lower() for name in self.names}


@dataclass(slots=True)
class Site:
    """The parts that live as long as the server."""

    options: SiteOptions
    questions: Questions
    say: Callable[[str], None]
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    uid: int = field(default_factory=os.getuid)
    logins: Logins | None = field(init=False)
    poller: Poller = field(init=False)
    tasks: BulkTasks = field(init=False)
    link_token: str = field(init=False, default="", repr=False)

    def __post_init__(self) -> None:
        credentials = self.options.credentials
        self.logins = None if credentials is None else Logins(credentials)
        self.poller = Poller(self.questions)
        self.tasks = BulkTasks(self.questions)

    def new_link(self) -> None:
        """Print a link that logs in once; none where users have passwords, or the kernel tells who they are."""
        address = self.options.address
        if self.options.credentials is None and address.path is None:
            self.link_token = secrets.token_urlsafe(24)
            self.say(f"Log in, once, by: {address.url}/login?token={self.link_token}")

    async def standing(self, began_s: float) -> SystemSnapshot:
        """How all stands, for a page that was asked for then, on the monotonic clock."""
        return await self.poller.latest(began_s + PAGE_S)

    def changed(self) -> None:
        """Something was changed: no page shows what was known before."""
        self.poller.forget()
