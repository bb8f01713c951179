"""TCP and TLS, with real certificates and real processes: who may connect, as what, and what a remote worker can do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import psutil
import pytest

import pulse
from pulse.client.client import Client
from pulse.client.discovery import Remote
from pulse.client.login import Login
from pulse.config import load
from pulse.errors import ForbiddenError, NobodyAnswersError, UnauthorizedError, UnavailableError
from pulse.protocol import encode
from pulse.security.credentials import hash_password
from pulse_actors.dispatcher.net.listener import REMOTE_HELLO_MAX_FRAME_BYTES
from tests.support.confidential import confidential
from tests.support.servers.certificates import Authority, Pair
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import Peer, Refused, new_job, short_directory
from tests.support.systems.system_kit import ROOT, SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system, pytest.mark.rest]

SECRETS: Final = {who: confidential(f"Sehr-geheim-{who}", f"password of {who}") for who in ("ann", "vic", "wim")}


@dataclass(slots=True)
class Edge:
    whole: Whole
    port: int
    ca: Authority
    served: Pair
    directory: Path

    def client(self, user: str | None = "ann", *, ca: Path | None = None) -> Client:
        login = Login(user, None if user is None else SECRETS[user], ca or self.ca.file)
        return Client(Remote("tls", "localhost", self.port, login), timeout_s=5).__enter__()

    def connect(self) -> ssl.SSLSocket:
        raw = socket.create_connection(("localhost", self.port), timeout=15)
        return ssl.create_default_context(cafile=str(self.ca.file)).wrap_socket(raw, server_hostname="localhost")

    def env(self, user: str = "ann") -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")}
        told = {"PULSE_CONNECT": f"tls://localhost:{self.port}", "PULSE_TLS_CA": str(self.ca.file)}
        return {**inherited, **told, "PULSE_USER": user, "PULSE_PASSWORD": SECRETS[user]}

    def peer(self, user: str, role: str = "client", **hello: object) -> Peer:
        """Logged in, once the throttle of passwords lets it in: a test before may have sent wrong ones."""
        found = until(lambda: self._let_in(user, role, hello), "it is let in")
        assert found is not None
        return found

    def _let_in(self, user: str, role: str, hello: Mapping[str, object]) -> Peer | None:
        peer = Peer(self.connect())
        try:
            peer.send("hello", 0, protocol=1, role=role, user=user, password=SECRETS[user], **hello)
            peer.welcome = peer.answer(0)
            if "session" in peer.welcome:  # it proves to be that worker
                confidential(peer.welcome["session"].hex(), "session of a worker")
        except Refused as refused:
            peer.close()
            if "too many wrong passwords" in str(refused):
                return None
            raise
        return peer

    def serve(self, pair: Pair) -> None:
        shutil.copyfile(pair.cert, self.served.cert)
        shutil.copyfile(pair.key, self.served.key)
        self.hang_up("certificate_reloaded")

    def hang_up(self, said: str) -> None:
        before = len(self.whole.log(said))
        assert self.whole.process is not None
        self.whole.process.send_signal(signal.SIGHUP)
        until(lambda: len(self.whole.log(said)) > before, said)


def port_of(whole: Whole) -> int:
    return int(whole.log("supervisor_ready")[-1]["tcp"].rpartition(":")[2])


@pytest.fixture(scope="module")
def edge(newest_server: Postgres) -> Iterator[Edge]:
    with short_directory() as directory, newest_server.database() as dsn:
        ca = Authority(directory)
        served = ca.issue("served", "localhost", "127.0.0.1")
        users = f"ann:{SECRETS['ann']},vic:{hash_password(SECRETS['vic'])}:viewer,wim:{SECRETS['wim']}:worker"
        settings = {
            **SHORT_LEASE, "PULSE_LISTEN": "127.0.0.1:0", "PULSE_TLS_CERT": str(served.cert),
            "PULSE_TLS_KEY": str(served.key), "PULSE_AUTH_USERS": users,
        }  # fmt: skip
        with place(dsn, **settings) as whole:
            whole.start()
            yield Edge(whole, port_of(whole), ca, served, directory)


def test_who_logs_in_is_served(edge: Edge) -> None:
    """With the newest TLS, and under its own user, which the audit records."""
    with edge.client() as client:
        job = client.submit("nobody", {"a": 1}, topic="tcp", delay_s=3600)
        assert client.get(job).args == {"a": 1}
        client.pause("tcp", "because")
        noted = cast("Any", client.request("audit.list", {"limit": 10})["audit"])[0]
    assert (noted["user_name"], noted.get("uid")) == ("ann", None)
    with contextlib.closing(edge.peer("ann")) as peer:
        assert isinstance(peer._socket, ssl.SSLSocket)
        assert peer._socket.version() == "TLSv1.3"


@pytest.mark.anyio
async def test_the_async_client_comes_in(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in edge.env().items():
        if name.startswith("PULSE_"):
            monkeypatch.setenv(name, value)
    async with pulse.connect() as client:
        assert await client.ping() < 5


def test_roles_of_a_login(edge: Edge) -> None:
    with edge.client("vic") as viewer:
        assert viewer.status()["jobs"] is not None
        with pytest.raises(ForbiddenError, match=r"^submit needs the role client, which user vic does not have"):
            viewer.submit("nobody")
    with pytest.raises(Refused, match=r"^forbidden: hello as worker needs the role worker"):
        edge.peer("vic", "worker", worker="w", topics=["t"], names=["n"], capacity=1)


def test_nobody_comes_in_without_a_password(edge: Edge) -> None:
    with pytest.raises(UnauthorizedError, match="asks for a user and a password"):
        edge.client(None)
    wrong = Remote("tls", "localhost", edge.port, Login("wim", "wrong", edge.ca.file))
    with pytest.raises(UnauthorizedError, match=r"^user and password do not fit together$"):
        Client(wrong).__enter__()
    until(lambda: _message(wrong) == "too many wrong passwords: try again in 1 s", "it has to wait")
    raw = Remote("tls", "localhost", edge.port, Login(None, SECRETS["ann"], edge.ca.file))

    def is_refused() -> bool:
        with pytest.raises((UnauthorizedError, UnavailableError)) as caught:
            Client(raw).__enter__()
        return isinstance(caught.value, UnauthorizedError)

    until(is_refused, "it may try again")
    with edge.whole.client() as local:
        assert local.call("ping") == {}
    until(lambda: _can_log_in(edge), "ann's own is right again")
    until(lambda: _can_log_in(edge, "wim"), "the guesses are forgiven: other tests log in from here")


def _message(server: Remote) -> str:
    with pytest.raises((UnauthorizedError, UnavailableError)) as caught:
        Client(server).__enter__()
    return caught.value.message


def _can_log_in(edge: Edge, user: str = "ann") -> bool:
    with contextlib.suppress(UnavailableError), edge.client(user):
        return True
    return False


def test_who_speaks_no_tls_is_sent_away(edge: Edge) -> None:
    plain = Remote("tcp", "localhost", edge.port, Login("ann", SECRETS["ann"]))
    with pytest.raises(NobodyAnswersError):
        Client(plain, timeout_s=5).__enter__()
    context = ssl.create_default_context(cafile=str(edge.ca.file))
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("localhost", edge.port), timeout=5) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw, server_hostname="localhost")
    with socket.create_connection(("localhost", edge.port), timeout=15) as raw:
        assert raw.recv(1) == b""  # a slow-loris has five seconds
    assert edge.whole.log("tls_failed")


def test_a_peer_that_is_cut_in_its_first_exchange(edge: Edge) -> None:
    edge.peer("ann").close()
    tls = edge.connect()
    hello = {"protocol": 1, "role": "client", "user": "ann", "password": SECRETS["ann"]}
    tls.sendall(encode("hello", 0, hello) + encode("jobs.list", 1, {}))
    with socket.socket(fileno=tls.detach()) as cut:  # without a word of TLS
        cut.settimeout(15)
        host, port = cut.getsockname()
        cut.shutdown(socket.SHUT_WR)
        while cut.recv(65536):
            pass
    until(lambda: edge.whole.log("peer_cut"), "it is told")
    (told,) = edge.whole.log("peer_cut")
    assert (told["level"], told["address"], told["times"]) == ("info", f"{host}:{port}", 1)
    assert edge.whole.log("visit_failed") == []


def test_a_long_hello_is_refused(edge: Edge) -> None:
    """Before any login nobody may fill the memory: not with a hello that the Unix socket would take."""
    with contextlib.closing(Peer(edge.connect())) as peer:
        peer.send_bytes((REMOTE_HELLO_MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
        assert peer.expect("error")["code"] == "too_large"


def test_a_certificate_is_taken_anew(edge: Edge) -> None:
    """By SIGHUP; and a client believes neither one that has expired, nor one for another name, nor a stranger's."""
    with edge.client() as client:
        assert client.ping() < 5
    edge.serve(edge.ca.issue("expired", "localhost", expired=True))
    with pytest.raises(NobodyAnswersError, match="its certificate is not accepted: certificate has expired"):
        edge.client()
    edge.serve(edge.ca.issue("other", "queue.example"))
    with pytest.raises(NobodyAnswersError, match="its certificate is not accepted: Hostname mismatch"):
        edge.client()
    good = edge.ca.issue("good", "localhost", "127.0.0.1")
    edge.serve(good)
    with pytest.raises(NobodyAnswersError, match="its certificate is not accepted: unable to get local issuer"):
        edge.client(ca=Authority(edge.directory, "stranger").file)
    edge.served.key.write_text("no key")
    edge.hang_up("certificate_not_reloaded")
    with edge.client() as client:  # and the one before goes on
        assert client.ping() < 5
    shutil.copyfile(good.key, edge.served.key)


def test_a_dispatcher_that_dies_refuses_nobody(edge: Edge) -> None:
    """Its successor has the same listening socket; connections wait in its backlog meanwhile."""
    pid = edge.whole.kill_actor("dispatcher")
    with edge.client() as client:
        assert client.ping() < 5
    edge.whole.wait_actor("dispatcher", not_pid=pid)


class TestWorkers:
    def test_a_pool_runs_jobs(self, edge: Edge) -> None:
        with edge.client() as client, _pool(edge) as pool:
            done = client.wait(client.submit("echo", {"a": 1}, topic="images"), timeout_s=20)
            assert done.status == "COMPLETED", (done, pool)
            with edge.whole.client() as local:
                rows = [row for row in local.call("workers.list")["workers"] if row["topics"]]
        assert [(row["recovery"], row["pid"], row["host"].partition(":")[0]) for row in rows] == [
            ("lease", 0, "127.0.0.1")
        ]
        assert rows[0]["identity"].startswith("tcp:wim/")

    def test_a_worker_comes_back_as_itself(self, edge: Edge) -> None:
        """By its session: the same identity, with its jobs; another user with that session is another worker."""
        words = {"worker": "w", "topics": ["back"], "names": ["n"], "capacity": 1}
        job = new_job(topic="back")
        with edge.whole.client() as client, contextlib.closing(edge.peer("wim", "worker", **words)) as first:
            client.submit(job)
            ((identity, attempt, *_),) = first.expect("assign")["jobs"]
            session, held = first.welcome["session"], [[identity, attempt]]
            before = edge.whole.row(identity)["locked_by"]
            with contextlib.closing(edge.peer("ann", "worker", **words, running=held, session=session)) as thief:
                assert thief.welcome["lost"] == held
                assert thief.call("report", results=[[*held[0], "ok", None]]) == {"stale": held}
            first.close()
            with contextlib.closing(edge.peer("wim", "worker", **words, running=held, session=session)) as again:
                assert (again.welcome["lost"], again.welcome["session"]) == ([], session)
                assert edge.whole.row(identity)["locked_by"] == before
                assert again.call("report", results=[[*held[0], "ok", None]]) == {"stale": []}
        assert edge.whole.row(identity)["status"] == "COMPLETED"


@contextlib.contextmanager
def _pool(edge: Edge) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "pulse.cli.main", "worker", "tests.support.apps.worker_app:app"]
    env = {**edge.env("wim"), "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    address = env.pop("PULSE_CONNECT")
    with subprocess.Popen([*words, "--connect", address], cwd=ROOT, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


class TestCommands:
    def test_login(self, edge: Edge, tmp_path: Path) -> None:
        """It is tried, saved for its owner alone, used from then on, and forgotten."""
        env = {key: value for key, value in edge.env().items() if not key.startswith("PULSE_")}
        env |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
        env.pop("XDG_CONFIG_HOME", None)
        address = f"tls://ann@localhost:{edge.port}"
        wrong = _ctl(env, "login", address, "--ca", str(edge.ca.file), told="wrong\n")
        assert (wrong.returncode, wrong.stderr) == (1, "pulse: user and password do not fit together\n")
        file = tmp_path / ".config" / "pulse" / "login.toml"
        assert not file.exists()

        def logged_in() -> bool:
            return _ctl(env, "login", address, "--ca", str(edge.ca.file), told=f"{SECRETS['ann']}\n").returncode == 0

        until(logged_in, "it is let in when it has waited")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        status = _ctl(env, "status")
        assert (status.returncode, status.stderr) == (1, "")  # servers of tests are set up for speed
        assert "wrong    settings: fsync is off" in status.stdout
        assert _ctl(env, "ping").returncode == 0
        elsewhere = _ctl(env, "actors", "restart", "dispatcher")
        assert "the supervisor is asked on its own machine only" in elsewhere.stderr
        file.chmod(0o644)
        assert "is not for its owner alone: chmod 600" in _ctl(env, "status").stderr
        assert _ctl(env, "logout").returncode == 0
        assert not file.exists()
        assert "nobody answers" in _ctl(env, "status").stderr

    @pytest.mark.parametrize(("address", "message"), [
        ("tls://ann:s3cret-word@host:1", "'tls://ann:***@host:1' has a password in it, which others can see"),
        ("http://host:1", "'http://host:1' is no address of a server"),
        ("tls://host", "'tls://host' is no address of a server"),
    ])  # fmt: skip
    def test_addresses_that_are_none(self, address: str, message: str) -> None:
        done = _ctl({"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, "--connect", address, "status")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert message in done.stderr
        assert "s3cret" not in done.stderr


def _ctl(env: Mapping[str, str], *words: str, told: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pulse.cli.main", "ctl", *words]
    return subprocess.run(command, env={**env}, input=told, capture_output=True, text=True, timeout=60, check=False)


def test_secrets_are_nowhere(edge: Edge) -> None:
    assert edge.whole.process is not None
    family = [psutil.Process(edge.whole.process.pid)]
    family += family[0].children(recursive=True)
    said = edge.whole.errors.read_text("utf-8")
    seen = "\n".join("\0".join(one.cmdline()) for one in family)
    inherited = "\n".join(repr(one.environ()) for one in family[1:])
    for secret in SECRETS.values():
        assert [secret in text for text in (said, seen, inherited)] == [False, False, False]


def test_client_certificates(newest_server: Postgres) -> None:
    """Where they are required nobody gets in without one; they replace a login where there are no users."""
    with short_directory() as directory, newest_server.database() as dsn:
        ca, clients = Authority(directory), Authority(directory, "clients")
        served, mine = ca.issue("served", "localhost"), clients.issue("mine", "client.example")
        settings = {
            "PULSE_LISTEN": "localhost:0", "PULSE_TLS_CERT": str(served.cert), "PULSE_TLS_KEY": str(served.key),
            "PULSE_TLS_CLIENT_CA": str(clients.file),
        }  # fmt: skip
        with place(dsn, **settings) as whole:
            whole.start()
            with pytest.raises(NobodyAnswersError):
                Client(Remote("tls", "localhost", port_of(whole), Login(ca=ca.file)), timeout_s=5).__enter__()
            login = Login(ca=ca.file, cert=mine.cert, key=mine.key)
            with Client(Remote("tls", "localhost", port_of(whole), login), timeout_s=5) as client:
                assert client.ping() < 5


class TestMistakes:
    @pytest.mark.parametrize(("given", "message"), [
        ({"PULSE_LISTEN": "host"}, "PULSE_LISTEN is 'host': host:port is allowed"),
        ({"PULSE_LISTEN": "::1:7420"}, "PULSE_LISTEN is '::1:7420': host:port is allowed"),
        ({"PULSE_TLS_CERT": "/c"}, "PULSE_TLS_CERT is set and PULSE_TLS_KEY is not"),
        ({"PULSE_TLS_CLIENT_CA": "/c"}, "PULSE_TLS_CLIENT_CA is set and PULSE_TLS_CERT is not"),
    ])  # fmt: skip
    def test_settings(self, given: dict[str, str], message: str, tmp_path: Path) -> None:
        with contextlib.chdir(tmp_path), pytest.raises(pulse.PulseError) as caught:
            load(given)
        assert caught.value.message.startswith(message)

    def test_certificates(self, tmp_path: Path) -> None:
        junk = tmp_path / "junk"
        junk.write_text("junk")
        env = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")}
        env |= {"PULSE_DSN": "postgresql:///none", "PULSE_LISTEN": "127.0.0.1:0"}
        env |= {"PULSE_RUNTIME_DIR": str(tmp_path / "run"), "PULSE_TLS_CERT": str(junk), "PULSE_TLS_KEY": str(junk)}
        program = Path(sys.executable).with_name("pulse-supervisor")
        done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
        assert done.stderr.startswith(f"pulse-supervisor: certificate {junk} and key {junk} cannot be used: ")
