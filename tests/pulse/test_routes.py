"""Queues and routes of the config file: which pattern counts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

import pulse
from pulse.client.discovery import parse_address
from pulse.config import load
from pulse.errors import BadRequestError, ConfigError
from pulse.routes import Queue, Routes

SHOP = """
[queues.orders]
server = "run/orders.sock"
schema = "orders"

[queues.mail]
server = "tls://shop@mail.example:7420"
dashboard = "https://mail.example"

[routes]
"mail" = "mail"
"mail.*" = "mail"
"mail.orders.*" = "orders"
"mail.orders.late" = "mail"
"""


def routes(tmp_path: Path, text: str, **env: str) -> Routes:
    path = tmp_path / "pulse.toml"
    path.write_text(text, "utf-8")
    return pulse.load_routes(None if env else path, env)


def refusal(tmp_path: Path, text: str) -> list[str]:
    """One line for each fault; the server says the same when it starts."""
    with pytest.raises(ConfigError) as caught:
        routes(tmp_path, text)
    with pytest.raises(ConfigError) as said:
        load({}, tmp_path / "pulse.toml")
    assert said.value.message == caught.value.message
    return [line.replace(str(tmp_path), "") for line in caught.value.message.split("\n")]


@pytest.mark.parametrize(("topic", "queue"), [
    ("mail", "mail"),
    ("mail.", "mail"),
    ("mail.welcome", "mail"),
    ("mail.orders.", "orders"),
    ("mail.orders.late", "mail"),
    ("mail.orders.late.too", "orders"),
])  # fmt: skip
def test_the_longest_pattern_counts_and_a_whole_topic_first(tmp_path: Path, topic: str, queue: str) -> None:
    assert routes(tmp_path, SHOP).of(topic).name == queue


def test_a_pattern_for_the_rest(tmp_path: Path) -> None:
    """Without one, a topic that no pattern fits is refused; upper and lower case differ."""
    with pytest.raises(BadRequestError, match=r"^topic 'Mail' has no route: allowed are mail, mail\.\*, mail\.orders"):
        routes(tmp_path, SHOP).of("Mail")
    assert routes(tmp_path, SHOP + '"*" = "orders"\n').of("Mail").name == "orders"
    assert routes(tmp_path, SHOP + '"*" = "orders"\n').of("mail").name == "mail"


class Unlisted(dict[str, str]):
    """Patterns that nobody goes through."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("each of them was looked at")

    def items(self) -> NoReturn:
        raise AssertionError("each of them was looked at")


def test_many_routes() -> None:
    """Each job of a submit is looked up; a message names some of them."""
    queue, names = Queue("a", "/a"), [f"tenant-{number}.*" for number in range(5000)]
    found = Routes({"a": queue}, Unlisted({**dict.fromkeys(names, "a"), "x" * 199 + "*": "a"}))
    for topic in ("tenant-7.", "tenant-4999.mail", "x" * 300):
        assert found.of(topic) == queue
    with pytest.raises(BadRequestError, match=r"^topic 'x' has no route: allowed are tenant-0\.\*, .*…$") as caught:
        Routes({"a": queue}, dict.fromkeys(names, "a")).of("x")
    assert len(caught.value.message) < 1100


def test_the_queue_of_a_server(tmp_path: Path) -> None:
    """However it is written: the user and the scheme are no part of it."""
    found = routes(tmp_path, SHOP)
    for server in ("tcp://MAIL.example:7420", "tls://ann@mail.example:7420/"):
        assert found.at(server) == found.named("mail")
    assert found.at(f"{tmp_path}/run/../run/orders.sock") == found.named("orders")
    for server in ("/run/orders.sock", "tls://mail.example:7421"):
        assert found.at(server) is None


def test_a_topic_of_another_queue(tmp_path: Path) -> None:
    found = routes(tmp_path, SHOP)
    found.check("mail.welcome", "mail")
    with pytest.raises(BadRequestError, match=r"^topic 'mail' belongs to queue mail: a topic of queue orders is all"):
        found.check("mail", "orders")


def test_queues(tmp_path: Path) -> None:
    """Relative paths begin at the folder of the file, as in all settings; the variable names the file, too."""
    found = routes(tmp_path, SHOP, PULSE_CONFIG=str(tmp_path / "pulse.toml"))
    assert found.named("orders") == Queue("orders", f"{tmp_path}/run/orders.sock", "orders")
    assert found.named("mail") == Queue("mail", "tls://shop@mail.example:7420", dashboard="https://mail.example")
    assert (found.named("mail").schema, found.patterns_of("orders")) == ("pulse", ["mail.orders.*"])
    with pytest.raises(BadRequestError, match=r"^there is no queue 'post': allowed are orders, mail$"):
        found.named("post")
    assert load({}, tmp_path / "pulse.toml").config == tmp_path / "pulse.toml"
    for plain in ("/run/pulse@a.sock", "./a:1", "unix:///a=b"):
        assert routes(tmp_path, f"queues.a.server = '{plain}'").named("a").server


@pytest.mark.parametrize(("text", "said"), [
    ("queues = 3", "queues in /pulse.toml is of type int: a table is allowed, as in [queues]"),
    ("[queues]\na = 3", "queues.a in /pulse.toml is of type int: a table with server, schema, dashboard is allowed"),
    ("[queues.a]", "queues.a.server in /pulse.toml is not there: the path of a socket, unix:///PATH, tls://HOST:PORT"),
    ("[queues.a]\nserver = ''", "queues.a.server in /pulse.toml is '': the path"),
    ("[queues.a]\nserver = 'a'\nschema = 'pg_a'", "queues.a.schema in /pulse.toml is 'pg_a': 1 to 63 bytes"),
    ("[queues.a]\nserver = 'a'\ndashboard = 'a'", "queues.a.dashboard in /pulse.toml is 'a': http://… or https://"),
    ("[queues.a]\nserver = 'a'\nport = 1", "queues.a.port in /pulse.toml is no setting of a queue: server, schema"),
    ("[queues.a]\nserver = '/a'\n[queues.b]\nserver = 'unix:///a'", "queues.b.server in /pulse.toml is '/a', as of"),
    ("[queues.'']\nserver = 'a'", "'queues.' in /pulse.toml: a name of visible characters is allowed"),
    ('[queues."a\\n"]\nserver = "a"', "'queues.a\\n' in /pulse.toml: a name of visible characters is allowed"),
    ("[routes]\n'x' = 'a'", "routes.\"x\" in /pulse.toml is 'a': a queue is allowed: there is none"),
    ("[queues.a]\nserver = 'a'\n[routes]\n'x' = 'b'", "routes.\"x\" in /pulse.toml is 'b': a queue is allowed: a"),
    ("[queues.a]\nserver = 'a'\n[routes]\n'x' = 1", 'routes."x" in /pulse.toml is of type int: a queue is allowed: a'),
    ("[queues.a]\nserver = 'a'\n[routes]\n'x*y' = 'a'", 'routes."x*y" in /pulse.toml is no pattern: a topic, or'),
    ("[queues.a]\nserver = 'a'\n[routes]\n'**' = 'a'", 'routes."**" in /pulse.toml is no pattern'),
    ("[queues.a]\nserver = 'a'\n[routes]\n'' = 'a'", 'routes."" in /pulse.toml is no pattern'),
])  # fmt: skip
def test_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (line,) = refusal(tmp_path, text)
    assert line.startswith(said), line


@pytest.mark.parametrize(
    "server",
    [
        *(
            "http://a:1",
            "tls://a",
            "tls://a:0",
            "unix://",
            "tls://",
            "a\\u0000b",
            "unix:///a://b",
            "a:1",
            "tls://@a:1",
            "a@b",
            "a=b",
        ),
        *(
            "tcp://u:s3cret@a:1",
            "tls://u:s3cret@ret",
            "tls://u:x@s3cret",
            "u:s3cret@mail:7420",
            "host=h password=s3cret",
        ),
        f"tls://a:{'9' * 5000}",
    ],
)
def test_no_server(tmp_path: Path, server: str) -> None:
    """A password is not repeated: others may read the message."""
    (line,) = refusal(tmp_path, f'[queues.a]\nserver = "{server}"')
    assert line.startswith("queues.a.server in /pulse.toml is "), line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    "server", ["tls://a:1", "tls://u@a:1/", "tcp://[::1]:1", "tls://a", "tls://@a:1", "x://a:1", "tls://u:p@a:1"]
)
def test_addresses_are_those_of_clients(tmp_path: Path, server: str) -> None:
    """What the file takes, a client can use, and the other way round."""
    try:
        parse_address(server)
    except ConfigError:
        refusal(tmp_path, f'[queues.a]\nserver = "{server}"')
    else:
        assert routes(tmp_path, f'[queues.a]\nserver = "{server}"').named("a").server == server


@pytest.mark.parametrize("text", [
    "queues.a.server = ['tls://u:s3cret@a:1']",
    "queues.a.server = {password = 's3cret'}",
    "queues.a.server = 'a'\nqueues.a.schema = 'pg_://u:s3cret@h/x'",
    "queues.a.server = 'a'\nqueues.a.dashboard = 'https://ann:s3cret@h'",
    "queues.a.server = 'a'\nqueues.a.dashboard = 'https://h/@s3cret'",
    "queues.a.server = 'a'\nqueues.a.dashboard = 's3cret@h'",
])  # fmt: skip
def test_no_password_is_shown(tmp_path: Path, text: str) -> None:
    """Neither in messages, nor in the links of a dashboard, which others see."""
    assert "s3cret" not in "".join(refusal(tmp_path, text))


@pytest.mark.parametrize(("one", "other"), [
    ("tls://a@h:1", "tls://b@h:1"),
    ("tls://h:1", "tls://H:1"),
    ("tls://h:1", "tls://h:01/"),
    ("tls://h:1", "tcp://h:1"),
    ("run/x.sock", "./run/../run/x.sock"),
])  # fmt: skip
def test_two_queues_on_one_server(tmp_path: Path, one: str, other: str) -> None:
    """However it is written: both would count the same jobs."""
    (line,) = refusal(tmp_path, f"queues.a.server = '{one}'\nqueues.b.server = '{other}'")
    assert line.startswith("queues.b.server in /pulse.toml is "), line
    assert line.endswith("as of queue a: another is allowed"), line


def test_every_fault_is_named(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, "queues.a.port = 1\nqueues.b = 2\nroutes.x = 'c'")) == 4
    assert len(refusal(tmp_path, "[queues.a]\n[queues.b]")) == 2  # what has no server is no twin


def test_there_have_to_be_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for programs that have one server then."""
    monkeypatch.chdir(tmp_path)
    for text in (None, "batch = 3\n"):
        with pytest.raises(ConfigError, match=r"pulse\.toml.* has no queues: \[queues\.NAME\] with a server is needed"):
            pulse.load_routes(env={}) if text is None else routes(tmp_path, text)
        assert pulse.load_routes(env={}, needed=False) == Routes({}, {})
    with pytest.raises(ConfigError, match=r"^file is 'no\.toml': the path of a file that exists is allowed$"):
        pulse.load_routes("no.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        routes(tmp_path, "[queues")
