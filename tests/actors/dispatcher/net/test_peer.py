"""Which peer a request belongs to: its limits hold on all of its connections."""

from __future__ import annotations

import pytest

from pulse.errors import UnauthorizedError
from pulse.protocol import Hello, Role
from pulse.protocol.roles import NOTHING
from pulse.security.credentials import Credentials
from pulse.security.password_login import Logins, source_of
from pulse.store.operators.transaction import Operator
from pulse_actors.dispatcher.net.peer import AuthenticatedPeer, RemotePeerAuth
from pulse_actors.shared.identity import Peer


@pytest.mark.anyio
@pytest.mark.parametrize(("host", "asker"), [
    ("10.1.2.3", "10.1.2.3"),
    ("2001:db8::1", "2001:db8::/64"),  # a machine has all of them
    ("2001:db8::2", "2001:db8::/64"),
])  # fmt: skip
async def test_who_asks_from_elsewhere(host: str, asker: str) -> None:
    came = RemotePeerAuth(f"{host}:50000", source_of(host), None, "h", lambda: None)
    assert (await came.admit(Hello(protocol=1, role=Role.CLIENT))).asker == asker


@pytest.mark.anyio
@pytest.mark.parametrize(("user", "password"), [(None, None), ("ann", None), (None, "secret")])
async def test_who_names_no_user_or_no_password(user: str | None, password: str | None) -> None:
    came = RemotePeerAuth("10.1.2.3:50000", "10.1.2.3", Logins(Credentials({})), "h", lambda: None)
    with pytest.raises(UnauthorizedError, match="asks for a user and a password"):
        await came.admit(Hello(protocol=1, role=Role.CLIENT, user=user, password=password))


@pytest.mark.parametrize(("pid", "asker"), [(42, 42), (0, None)])
def test_who_asks_here(pid: int, asker: int | None) -> None:
    assert AuthenticatedPeer(Operator(), NOTHING, Peer(pid, 0, 0, 7, 1)).asker == asker
