"""Settings: every rule on both sides of its boundary, every source, and what the messages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulse.common.duration import ABOVE_ZERO
from pulse.config import Settings, dump, load, restore
from pulse.errors import ConfigError
from tests.support.hostile import HOSTILE

CLUSTER_URL = "postgresql://u@h1:5432,[::1]:5433/db?target_session_attrs=read-write"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(env: dict[str, str], **overrides: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(env, overrides=overrides)
    return caught.value.message.split("\n")


def written(text: str | bytes, name: str = "pulse.toml") -> Path:
    path = Path.cwd() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


class TestSources:
    def test_option_over_environment_over_file(self) -> None:
        """An empty or missing value leaves the next source; the path of the file is kept."""
        path = written("batch = 7\n")
        settings = load({"PULSE_BATCH": ""}, overrides={"batch": None})
        assert (settings.batch, settings.config) == (7, path)
        assert load({"PULSE_BATCH": "8"}, overrides={"batch": None}).batch == 8
        assert load({"PULSE_BATCH": "8"}, overrides={"batch": 9}).batch == 9

    def test_variables(self) -> None:
        """Set to nothing, or white space, counts as unset; white space around a value does not count."""
        assert load({"PULSE_BATCH": "", "PULSE_DSN": " ", "PULSE_CONFIG": ""}) == Settings()
        assert load({"PULSE_DSN": "postgresql:///jobs\n"}).dsn == "postgresql:///jobs"
        assert load({"PULSE_CI_FULL": "1", "PULSE_SERVER": "unix:/x", "PULSE_LEASE": "9"}) == Settings()

    def test_durations(self) -> None:
        """With units or without, in the environment and the file; what is wrong is shown as it was typed."""
        path = written('retention_s = "30d"\nbackoff = "fixed:5m"\ndrain_s = 60\n')
        settings = load({"PULSE_LEASE_S": "1m30s", "PULSE_CONFIG": str(path)}, overrides={"drain_s": "2m"})
        assert (settings.lease_s, settings.retention_s, settings.backoff) == (90.0, 30 * 86400.0, "fixed:300")
        assert settings.drain_s == 120.0
        assert refusal({"PULSE_SWEEP_S": "0m"}) == [f"PULSE_SWEEP_S is '0m': {ABOVE_ZERO}"]

    def test_unknown_option_is_a_mistake_of_the_caller(self) -> None:
        with pytest.raises(TypeError, match="no such setting: leas_s"):
            load({}, overrides={"leas_s": 1})


class TestFile:
    def test_named(self) -> None:
        for number, name in enumerate(("pulse.toml", "a.toml", "b.toml")):
            written(f"batch = {number + 1}\n", name)
        assert load({"PULSE_CONFIG": "a.toml"}).batch == 2
        assert load({"PULSE_CONFIG": "a.toml"}, Path("b.toml")).batch == 3
        assert refusal({"PULSE_CONFIG": "no.toml"}) == [
            "PULSE_CONFIG is 'no.toml': the path of a file that exists is allowed"
        ]
        assert refusal({"PULSE_CONFIG": "/"})[0].startswith("PULSE_CONFIG is '/'")
        with pytest.raises(ConfigError, match=r"^--config is 'no\.toml'"):
            load({}, Path("no.toml"))

    @pytest.mark.parametrize(("text", "said"), [
        ("batch = 7\nlease_s =\n", r"{file}.* line 2"),
        (b"dsn = '\xff'\n", r"{file} is not TOML"),
        ("heartbeats = 3\n", r"^heartbeats in {file} is no setting; the nearest that is: heartbeat_s$"),
        ("PULSE_LEASE_S = 3\n", r"the nearest that is: lease_s$"),
        ("config = 'x.toml'\n", r"^config in "),  # no further file
        ("lease_s = true\n", r"^lease_s in {file} is True: a length of time above 0 is allowed"),
        ("batch = [1]\n", r"^batch in {file} is \[1\]: a whole number"),
        ("state_dir = ''\n", r"is '': a path is allowed$"),
    ])  # fmt: skip
    def test_what_is_wrong_in_it(self, text: str | bytes, said: str) -> None:
        path = written(text)
        (line,) = refusal({})
        assert re.search(said.format(file=re.escape(str(path))), line), line

    @pytest.mark.parametrize(
        "line",
        ['auth_users = ["ann:s3cret"]', 'auth_users = {ann = "s3cret"}', 'dsn = {host = "h", password = "s3cret"}'],
    )
    def test_a_secret_of_the_wrong_type_is_not_shown(self, line: str) -> None:
        """A file has lists and tables, in which secrets cannot be recognized."""
        path = written(line + "\n")
        (said,) = refusal({})
        assert said.startswith(f"{line.partition(' ')[0]} in {path} is '***': ")
        assert "s3cret" not in said

    def test_toml_types(self) -> None:
        written("lease_s = 60\nheartbeat_s = '5'\nproof_of_death = false\n")
        settings = load({})
        assert (settings.lease_s, settings.heartbeat_s, settings.proof_of_death) == (60.0, 5.0, False)

    def test_a_wrong_value_that_is_overridden_does_not_matter(self) -> None:
        written("batch = 0\n")
        assert load({"PULSE_BATCH": "1"}).batch == 1

    def test_a_schema_without_a_name(self) -> None:
        """As a variable it counts as unset, like every setting."""
        path = written('schema = ""\n')
        (line,) = refusal({})
        assert line.startswith(f"schema in {path} is '': 1 to 63 bytes of printable UTF-8 are allowed")
        assert refusal({}, schema=" x")[0].startswith("--schema is ' x': 1 to 63 bytes")
        assert load({"PULSE_SCHEMA": "", "PULSE_CONFIG": str(written("schema = 'orders'\n"))}).schema == "orders"


ACCEPTED = [
    ("lease_s", "30.000001", 30.000001), ("heartbeat_s", "1e-3", 0.001), ("sweep_s", "0.05", 0.05),
    ("poll_s", "1e9", 1e9), ("drain_s", "0", 0.0), ("retention_s", "0", 0.0), ("retention_s", "3600", 3600.0),
    ("batch", "1", 1), ("batch", "10000", 10000), ("max_attempts", "1", 1), ("max_attempts", "10000", 10000),
    ("max_crashes", "1", 1), ("max_crashes", "10000", 10000), ("processes", "1", 1), ("processes", "1024", 1024),
    ("concurrency", "1", 1), ("concurrency", "10000", 10000), ("spares", "0", 0), ("spares", "8", 8),
    ("preload", "0", False), ("proof_of_death", "0", False),
    ("proof_of_death", "1", True), ("proof_of_death", "False", False),
    ("backoff", "quadratic", "quadratic"), ("log_level", "DEBUG", "debug"), ("log_level", "critical", "critical"),
    ("log_format", "json", "json"), ("log_format", "Console", "console"), ("host_id", "a", "a"),
    ("host_id", "A-z.0_9", "A-z.0_9"), ("host_id", "h" * 64, "h" * 64), ("embedded_user", "pulse", "pulse"),
    ("embedded_user", "_" * 32, "_" * 32), ("listen", "127.0.0.1:7070", "127.0.0.1:7070"),
    ("listen", "[::1]:0", "[::1]:0"), ("listen", "jobs.example.org:65535", "jobs.example.org:65535"),
    ("app", "jobs:app", "jobs:app"), ("app", "shop.jobs:tools.app", "shop.jobs:tools.app"),
    ("dsn", "postgresql://u:p@h:5432/db?sslmode=require", "postgresql://u:p@h:5432/db?sslmode=require"),
    ("dsn", CLUSTER_URL, CLUSTER_URL), ("dsn", "postgres:///db", "postgres:///db"),
    ("dsn", "host=/run/postgresql dbname='my db'", "host=/run/postgresql dbname='my db'"),
    ("auth_users", "ann:$2b$12$abc", "ann:$2b$12$abc"),
    ("redact", "password, card.number,charge:card.*", "password, card.number,charge:card.*"),
    ("schema", "pulse", "pulse"), ("schema", HOSTILE, HOSTILE), ("schema", "n" * 63, "n" * 63),
    ("metrics", "9187", "9187"), ("metrics", "/run/pulse/metrics.sock", "/run/pulse/metrics.sock"),
]  # fmt: skip

REFUSED = {
    "redact": ("password,", "card..number", "card number", ":card"),
    "lease_s": ("abc", "0", "-1", "nan", "inf", "1e10", "30x"),
    "heartbeat_s": ("0",),
    "sweep_s": ("0",),
    "poll_s": ("0",),
    "drain_s": ("-0.001", "inf"),
    "retention_s": ("-1", "null"),
    "batch": ("0", "10001", "1.5"),
    "max_attempts": ("0", "10001"),
    "max_crashes": ("0", "10001"),
    "processes": ("0", "1025"),
    "concurrency": ("0", "10001"),
    "spares": ("-1", "9"),
    "preload": ("2", "no"),
    "proof_of_death": ("2", "maybe"),
    "backoff": ("cubic",),
    "log_level": ("loud",),
    "log_format": ("xml",),
    "host_id": ("h" * 65, "a b", "a/b", "ä"),
    "embedded_user": ("0day", "_" * 33, "a b"),
    "listen": ("7070", ":7070", "h:65536", "h:port", "::1:7070"),
    "app": ("jobs", "jobs:", ":app", "jobs.py:app()"),
    "dsn": (
        "mysql://h/db", "postgresql:/h/db", "postgresql://h:0/db", "postgresql://h:65536/db", "postgresql://[::1/db",
        "postgresql://h/d b", "postgresql://h/db?sslmode", "just some words", "dbname", "dbname='open", "colour=red",
        "host=h\x00",
    ),
    "runtime_dir": ("a\0b",),
    "schema": ("pg_mine", "public", "information_schema", "pulse_audit", "é" * 32, "a\0b", "a\nb"),
}  # fmt: skip


class TestValues:
    @pytest.mark.parametrize(("name", "text", "value"), ACCEPTED)
    def test_accepted(self, name: str, text: str, value: object) -> None:
        found = getattr(load({f"PULSE_{name.upper()}": text}), name)
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
    def test_refused(self, name: str, text: str) -> None:
        (line,) = refusal({f"PULSE_{name.upper()}": text})
        assert line.startswith(f"PULSE_{name.upper()} is {text!r}: ")
        assert line.partition(": ")[2].strip()
        assert "allowed" in line

    def test_messages(self) -> None:
        wrong = {"PULSE_LEASE_S": "abc", "PULSE_LOG_FORMAT": "xml", "PULSE_HOST_ID": "x" * 5000, "PULSE_BATCH": "0"}
        told = {line.partition(" ")[0]: line for line in refusal(wrong, embedded_user="a b")}
        assert told.keys() == {*wrong, "--embedded-user"}
        assert told["PULSE_LEASE_S"].startswith("PULSE_LEASE_S is 'abc': a length of time above 0 is allowed")
        assert told["PULSE_LOG_FORMAT"] == "PULSE_LOG_FORMAT is 'xml': json or console is allowed"
        assert told["--embedded-user"].startswith("--embedded-user is 'a b': ")
        assert max(map(len, told.values())) < 200

    @pytest.mark.parametrize("dsn", [
        "postgresq://ann:s3cret@h/db", "postgresql://ann:s3cret@h:0/db", "host=h password=s3cret x", "ann:s3cret@h/db",
    ])  # fmt: skip
    def test_password_of_a_wrong_dsn_stays_secret(self, dsn: str) -> None:
        (line,) = refusal({"PULSE_DSN": dsn})
        assert "s3cret" not in line
        assert "***" in line


def test_an_option_is_named_as_it_was_written() -> None:
    assert refusal({}, metrics="x:y")[0].startswith("--listen is 'x:y': a port of 127.0.0.1")


def test_relative_paths() -> None:
    assert load({"PULSE_STATE_DIR": "state"}).state_dir == Path.cwd() / "state"
    path = written("runtime_dir = 'run'\n", "etc/p.toml")
    assert load({"PULSE_CONFIG": "etc/p.toml"}).runtime_dir == path.parent / "run"
    assert load({}, overrides={"runtime_dir": Path("/run/x")}).runtime_dir == Path("/run/x")


class TestRelations:
    def test_exactly_three_beats(self) -> None:
        load({"PULSE_LEASE_S": "30", "PULSE_HEARTBEAT_S": "10"})
        load({"PULSE_LEASE_S": "0.3", "PULSE_HEARTBEAT_S": "0.1"})
        assert refusal({"PULSE_LEASE_S": "29.9", "PULSE_HEARTBEAT_S": "10"}) == [
            "PULSE_LEASE_S is 29.9 and PULSE_HEARTBEAT_S is 10: a lease of at least 3 heartbeats is allowed"
        ]
        (line,) = refusal({"PULSE_HEARTBEAT_S": "20"}, lease_s=50)
        assert line.startswith("--lease-s is 50 and PULSE_HEARTBEAT_S is 20: ")
        assert len(refusal({"PULSE_LEASE_S": "x", "PULSE_HEARTBEAT_S": "20"})) == 1

    def test_a_shorter_lease_alone_beats_faster(self) -> None:
        """Without a heartbeat of its own a short lease gets a third of itself, a long one the default."""
        assert load({"PULSE_LEASE_S": "3"}).heartbeat_s == 1.0
        assert load({"PULSE_LEASE_S": "60"}).heartbeat_s == 10.0
        assert load({"PULSE_LEASE_S": "3", "PULSE_HEARTBEAT_S": "0.5"}).heartbeat_s == 0.5

    def test_certificate_and_key_together(self) -> None:
        load({"PULSE_TLS_CERT": "c", "PULSE_TLS_KEY": "k"})
        for there, missing in (("PULSE_TLS_CERT", "PULSE_TLS_KEY"), ("PULSE_TLS_KEY", "PULSE_TLS_CERT")):
            assert refusal({there: "c"}) == [f"{there} is set and {missing} is not: both or neither is allowed"]


class TestHandingOver:
    def test_round_trip(self) -> None:
        settings = load({"PULSE_DSN": CLUSTER_URL, "PULSE_STATE_DIR": "/s", "PULSE_LEASE_S": "90"})
        assert restore(dump(settings)) == settings
        values = dump(load({"PULSE_STATE_DIR": "/s"})).values()
        assert {type(value) for value in values} <= {str, int, float, bool, type(None)}
        with pytest.raises(ConfigError, match="not understood"):
            restore({"lease_s": "soon"})

    def test_repr_keeps_secrets(self) -> None:
        settings = load({"PULSE_DSN": "postgresql://ann:s3cret@h/db", "PULSE_AUTH_USERS": "ann:hash"})
        assert repr(settings) == "Settings(dsn='postgresql://ann:***@h/db', auth_users='***')"
        with pytest.raises(AttributeError, match="immutable type"):
            load({}).batch = 0  # type: ignore[misc]
