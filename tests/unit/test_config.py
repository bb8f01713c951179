"""Settings: every rule on both sides of its boundary, every source, and what the messages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse.config import Settings, dump, load, restore
from pulse.errors import ConfigError

CLUSTER_URL = "postgresql://u@h1:5432,[::1]:5433/db?target_session_attrs=read-write"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees a pulse.toml of the checkout."""
    monkeypatch.chdir(tmp_path)


def refusal(env: dict[str, str], **overrides: object) -> list[str]:
    """The problems that load finds, one line each."""
    with pytest.raises(ConfigError) as caught:
        load(env, overrides=overrides)
    return caught.value.message.split("\n")


class TestSources:
    """Option over environment over file over default."""

    def test_defaults_are_the_documented_ones(self) -> None:
        """Without any source every setting has the value that the documentation names."""
        settings = load({})
        assert settings == Settings()
        assert (settings.lease_s, settings.heartbeat_s, settings.sweep_s, settings.poll_s) == (30.0, 10.0, 10.0, 0.5)
        assert (settings.batch, settings.max_attempts, settings.max_crashes, settings.drain_s) == (500, 5, 3, 30.0)
        assert (settings.proof_of_death, settings.backoff, settings.retention_s) == (True, "quadratic", None)

    def test_file_wins_over_default(self, tmp_path: Path) -> None:
        """A value in ./pulse.toml replaces the default, and the file that was read is known."""
        (tmp_path / "pulse.toml").write_text("batch = 7\n")
        settings = load({})
        assert settings.batch == 7
        assert settings.config == tmp_path / "pulse.toml"

    def test_environment_wins_over_file(self, tmp_path: Path) -> None:
        """A variable replaces what the file says."""
        (tmp_path / "pulse.toml").write_text("batch = 7\n")
        assert load({"PULSE_BATCH": "8"}).batch == 8

    def test_option_wins_over_environment(self, tmp_path: Path) -> None:
        """An option replaces what the variable and the file say."""
        (tmp_path / "pulse.toml").write_text("batch = 7\n")
        assert load({"PULSE_BATCH": "8"}, overrides={"batch": 9}).batch == 9

    def test_option_of_none_is_not_given(self) -> None:
        """An option that was not given leaves the environment's value."""
        assert load({"PULSE_BATCH": "8"}, overrides={"batch": None}).batch == 8

    def test_empty_variable_is_unset(self) -> None:
        """A variable set to nothing, or to white space, counts as unset."""
        assert load({"PULSE_BATCH": "", "PULSE_DSN": " ", "PULSE_CONFIG": ""}) == Settings()

    def test_white_space_around_a_value_is_ignored(self) -> None:
        """A trailing newline, as files of secrets have it, is no part of the value."""
        assert load({"PULSE_DSN": "postgresql:///jobs\n"}).dsn == "postgresql:///jobs"

    def test_foreign_variables_are_left_alone(self) -> None:
        """Variables that are no setting, such as PulseAudio's, are not refused."""
        assert load({"PULSE_CI_FULL": "1", "PULSE_SERVER": "unix:/x", "PULSE_LEASE": "9"}) == Settings()

    def test_unknown_option_is_a_mistake_of_the_caller(self) -> None:
        """An override that names no setting raises TypeError: it comes from code, not from a user."""
        with pytest.raises(TypeError, match="no such setting: leas_s"):
            load({}, overrides={"leas_s": 1})


class TestFile:
    """Which file is read, and what is refused in it."""

    def test_named_by_environment(self, tmp_path: Path) -> None:
        """PULSE_CONFIG names the file instead of ./pulse.toml."""
        (tmp_path / "pulse.toml").write_text("batch = 7\n")
        (tmp_path / "other.toml").write_text("batch = 8\n")
        assert load({"PULSE_CONFIG": "other.toml"}).batch == 8

    def test_named_by_option(self, tmp_path: Path) -> None:
        """The option wins over PULSE_CONFIG."""
        (tmp_path / "a.toml").write_text("batch = 1\n")
        (tmp_path / "b.toml").write_text("batch = 2\n")
        assert load({"PULSE_CONFIG": "a.toml"}, Path("b.toml")).batch == 2

    def test_named_by_environment_but_missing(self) -> None:
        """A file that PULSE_CONFIG names must be there."""
        assert refusal({"PULSE_CONFIG": "no.toml"}) == [
            "PULSE_CONFIG is 'no.toml': the path of a file that exists is allowed"
        ]

    def test_named_by_option_but_missing(self) -> None:
        """A file that the option names must be there."""
        with pytest.raises(ConfigError, match=r"^--config is 'no\.toml'"):
            load({}, Path("no.toml"))

    def test_directory_is_no_file(self, tmp_path: Path) -> None:
        """A directory is refused as a config file, not read."""
        assert refusal({"PULSE_CONFIG": str(tmp_path)})[0].startswith(f"PULSE_CONFIG is '{tmp_path}'")

    def test_broken_toml_names_line_and_file(self, tmp_path: Path) -> None:
        """A file that is not TOML is refused with its path and the line."""
        (tmp_path / "pulse.toml").write_text("batch = 7\nlease_s =\n")
        (line,) = refusal({})
        assert str(tmp_path / "pulse.toml") in line
        assert "line 2" in line

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        """A file that is not UTF-8 is refused with one line."""
        (tmp_path / "pulse.toml").write_bytes(b"dsn = '\xff'\n")
        assert "is not TOML" in refusal({})[0]

    def test_unknown_key_with_the_nearest_known(self, tmp_path: Path) -> None:
        """An unknown key is refused by name, with the setting that was probably meant."""
        (tmp_path / "pulse.toml").write_text("heartbeats = 3\n")
        assert refusal({}) == [
            f"heartbeats in {tmp_path}/pulse.toml is no setting; the nearest that is: heartbeat_s",
        ]

    def test_variable_name_in_the_file(self, tmp_path: Path) -> None:
        """The environment's spelling in the file is answered with the file's."""
        (tmp_path / "pulse.toml").write_text("PULSE_LEASE_S = 3\n")
        assert refusal({})[0].endswith("the nearest that is: lease_s")

    def test_config_names_no_further_file(self, tmp_path: Path) -> None:
        """A config file cannot name another one."""
        (tmp_path / "pulse.toml").write_text("config = 'x.toml'\n")
        assert refusal({})[0].startswith("config in ")

    def test_value_of_a_wrong_type(self, tmp_path: Path) -> None:
        """A value in the file is checked like any other, and the message says where it stands."""
        (tmp_path / "pulse.toml").write_text("lease_s = true\nbatch = [1]\n")
        lease, batch = refusal({})
        assert lease.startswith(f"lease_s in {tmp_path}/pulse.toml is True: a number of seconds above 0 is allowed")
        assert batch.startswith(f"batch in {tmp_path}/pulse.toml is [1]: a whole number")

    @pytest.mark.parametrize(
        "line",
        ['auth_users = ["ann:s3cret"]', 'auth_users = {ann = "s3cret"}', 'dsn = {host = "h", password = "s3cret"}'],
    )
    def test_a_secret_of_the_wrong_type_is_not_shown(self, tmp_path: Path, line: str) -> None:
        """A file has lists and tables; what is secret in one cannot be told apart."""
        (tmp_path / "pulse.toml").write_text(line + "\n")
        (said,) = refusal({})
        assert said.startswith(f"{line.partition(' ')[0]} in {tmp_path}/pulse.toml is '***': ")
        assert "s3cret" not in said

    def test_toml_types(self, tmp_path: Path) -> None:
        """Numbers, strings of numbers, and booleans of TOML are taken as they are meant."""
        (tmp_path / "pulse.toml").write_text("lease_s = 60\nheartbeat_s = '5'\nproof_of_death = false\n")
        settings = load({})
        assert (settings.lease_s, settings.heartbeat_s, settings.proof_of_death) == (60.0, 5.0, False)

    def test_a_wrong_value_that_is_overridden_does_not_matter(self, tmp_path: Path) -> None:
        """Only the value that wins is checked."""
        (tmp_path / "pulse.toml").write_text("batch = 0\n")
        assert load({"PULSE_BATCH": "1"}).batch == 1


ACCEPTED = [
    ("lease_s", "30.000001", 30.000001), ("heartbeat_s", "1e-3", 0.001), ("sweep_s", "0.05", 0.05),
    ("poll_s", "1e9", 1e9), ("drain_s", "0", 0.0), ("retention_s", "0", 0.0), ("retention_s", "3600", 3600.0),
    ("batch", "1", 1), ("batch", "10000", 10000), ("max_attempts", "1", 1), ("max_attempts", "10000", 10000),
    ("max_crashes", "1", 1), ("max_crashes", "10000", 10000), ("processes", "1", 1), ("processes", "1024", 1024),
    ("concurrency", "1", 1), ("concurrency", "10000", 10000), ("spares", "0", 0), ("spares", "8", 8),
    ("proof_of_death", "0", False), ("proof_of_death", "1", True), ("proof_of_death", "False", False),
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
]  # fmt: skip

REFUSED = [
    ("redact", "password,"), ("redact", "card..number"), ("redact", "card number"), ("redact", ":card"),
    ("lease_s", "abc"), ("lease_s", "0"), ("lease_s", "-1"), ("lease_s", "nan"), ("lease_s", "inf"),
    ("lease_s", "1e10"), ("lease_s", "30s"), ("heartbeat_s", "0"), ("sweep_s", "0"), ("poll_s", "0"),
    ("drain_s", "-0.001"), ("drain_s", "inf"), ("retention_s", "-1"), ("retention_s", "null"), ("batch", "0"),
    ("batch", "10001"), ("batch", "1.5"), ("max_attempts", "0"), ("max_attempts", "10001"), ("max_crashes", "0"),
    ("max_crashes", "10001"), ("processes", "0"), ("processes", "1025"), ("concurrency", "0"), ("concurrency", "10001"),
    ("spares", "-1"), ("spares", "9"), ("proof_of_death", "2"), ("proof_of_death", "maybe"), ("backoff", "cubic"),
    ("log_level", "loud"), ("log_format", "xml"), ("host_id", "h" * 65), ("host_id", "a b"), ("host_id", "a/b"),
    ("host_id", "ä"), ("embedded_user", "0day"), ("embedded_user", "_" * 33), ("embedded_user", "a b"),
    ("listen", "7070"), ("listen", ":7070"), ("listen", "h:65536"), ("listen", "h:port"), ("listen", "::1:7070"),
    ("app", "jobs"), ("app", "jobs:"), ("app", ":app"), ("app", "jobs.py:app()"), ("dsn", "mysql://h/db"),
    ("dsn", "postgresql:/h/db"), ("dsn", "postgresql://h:0/db"), ("dsn", "postgresql://h:65536/db"),
    ("dsn", "postgresql://[::1/db"), ("dsn", "postgresql://h/d b"), ("dsn", "postgresql://h/db?sslmode"),
    ("dsn", "just some words"), ("dsn", "dbname"), ("dsn", "dbname='open"), ("dsn", "colour=red"),
    ("dsn", "host=h\x00"), ("runtime_dir", "a\0b"),
]  # fmt: skip


class TestValues:
    """Each setting's own rule."""

    @pytest.mark.parametrize(("name", "text", "value"), ACCEPTED)
    def test_accepted(self, name: str, text: str, value: object) -> None:
        """A value on the good side of the boundary is taken, in the setting's own type."""
        found = getattr(load({f"PULSE_{name.upper()}": text}), name)
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize(("name", "text"), REFUSED)
    def test_refused(self, name: str, text: str) -> None:
        """A value on the wrong side is refused with the setting, the value and what is allowed."""
        (line,) = refusal({f"PULSE_{name.upper()}": text})
        assert line.startswith(f"PULSE_{name.upper()} is {text!r}: ")
        assert line.partition(": ")[2].strip()
        assert "allowed" in line

    def test_message_of_a_wrong_number(self) -> None:
        """The message reads as a sentence."""
        (line,) = refusal({"PULSE_LEASE_S": "abc"})
        assert line.startswith("PULSE_LEASE_S is 'abc': a number of seconds above 0 is allowed")

    def test_message_of_a_wrong_word(self) -> None:
        """The message lists the words that are allowed."""
        assert refusal({"PULSE_LOG_FORMAT": "xml"}) == ["PULSE_LOG_FORMAT is 'xml': json or console is allowed"]

    def test_message_names_the_option(self) -> None:
        """A wrong option is called by the option's name."""
        (line,) = refusal({}, embedded_user="a b")
        assert line.startswith("--embedded-user is 'a b': ")

    def test_long_values_are_cut(self) -> None:
        """A message stays one readable line whatever the value."""
        (line,) = refusal({"PULSE_HOST_ID": "x" * 5000})
        assert len(line) < 200

    @pytest.mark.parametrize("dsn", [
        "postgresq://ann:s3cret@h/db", "postgresql://ann:s3cret@h:0/db", "host=h password=s3cret x", "ann:s3cret@h/db",
    ])  # fmt: skip
    def test_password_of_a_wrong_dsn_stays_secret(self, dsn: str) -> None:
        """Even a DSN with a slip in it is shown without its password."""
        (line,) = refusal({"PULSE_DSN": dsn})
        assert "s3cret" not in line
        assert "***" in line

    def test_all_problems_at_once(self) -> None:
        """Every wrong setting is named in one go, a line each."""
        lines = refusal({"PULSE_BATCH": "0", "PULSE_POLL_S": "x", "PULSE_LOG_LEVEL": "loud"})
        assert [line.split()[0] for line in lines] == ["PULSE_LOG_LEVEL", "PULSE_POLL_S", "PULSE_BATCH"]


class TestPaths:
    """Paths become absolute, each from where it was written."""

    def test_environment_from_here(self, tmp_path: Path) -> None:
        """A relative path of the environment begins at the current directory."""
        assert load({"PULSE_STATE_DIR": "state"}).state_dir == tmp_path / "state"

    def test_file_from_its_own_folder(self, tmp_path: Path) -> None:
        """A relative path in the file begins at the file's folder."""
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "p.toml").write_text("runtime_dir = 'run'\n")
        assert load({"PULSE_CONFIG": "etc/p.toml"}).runtime_dir == tmp_path / "etc" / "run"

    def test_absolute_as_it_is(self) -> None:
        """An absolute path is kept."""
        assert load({}, overrides={"runtime_dir": Path("/run/x")}).runtime_dir == Path("/run/x")

    def test_empty_path_in_the_file(self, tmp_path: Path) -> None:
        """A path of no characters is refused."""
        (tmp_path / "pulse.toml").write_text("state_dir = ''\n")
        assert refusal({})[0].endswith("is '': a path is allowed")


class TestRelations:
    """What must hold between settings."""

    def test_exactly_three_beats(self) -> None:
        """A lease of exactly three heartbeats is allowed, whatever binary fractions do."""
        load({"PULSE_LEASE_S": "30", "PULSE_HEARTBEAT_S": "10"})
        load({"PULSE_LEASE_S": "0.3", "PULSE_HEARTBEAT_S": "0.1"})

    def test_a_shorter_lease_alone_beats_faster(self) -> None:
        """Without a heartbeat of its own a short lease gets a third of itself, a long one the default."""
        assert load({"PULSE_LEASE_S": "3"}).heartbeat_s == 1.0
        assert load({"PULSE_LEASE_S": "60"}).heartbeat_s == 10.0
        assert load({"PULSE_LEASE_S": "3", "PULSE_HEARTBEAT_S": "0.5"}).heartbeat_s == 0.5

    def test_a_little_less_than_three_beats(self) -> None:
        """A shorter lease is refused; the message names both settings, by their sources."""
        assert refusal({"PULSE_LEASE_S": "29.9", "PULSE_HEARTBEAT_S": "10"}) == [
            "PULSE_LEASE_S is 29.9 and PULSE_HEARTBEAT_S is 10: a lease of at least 3 heartbeats is allowed"
        ]
        (line,) = refusal({"PULSE_HEARTBEAT_S": "20"}, lease_s=50)
        assert line.startswith("--lease-s is 50 and PULSE_HEARTBEAT_S is 20: ")

    def test_a_wrong_partner_is_reported_once(self) -> None:
        """A setting that is wrong in itself is not compared with others."""
        assert len(refusal({"PULSE_LEASE_S": "x", "PULSE_HEARTBEAT_S": "20"})) == 1

    def test_certificate_and_key_together(self) -> None:
        """Both or neither of certificate and key."""
        load({"PULSE_TLS_CERT": "c", "PULSE_TLS_KEY": "k"})
        assert refusal({"PULSE_TLS_CERT": "c"}) == [
            "PULSE_TLS_CERT is set and PULSE_TLS_KEY is not: both or neither is allowed"
        ]
        assert refusal({"PULSE_TLS_KEY": "k"}) == [
            "PULSE_TLS_KEY is set and PULSE_TLS_CERT is not: both or neither is allowed"
        ]


class TestHandingOver:
    """Settings travel to child processes as plain values."""

    def test_round_trip(self) -> None:
        """What dump took apart, restore puts together."""
        settings = load({"PULSE_DSN": CLUSTER_URL, "PULSE_STATE_DIR": "/s", "PULSE_LEASE_S": "90"})
        assert restore(dump(settings)) == settings

    def test_plain_values_only(self) -> None:
        """A dump holds nothing that a frame could not carry."""
        values = dump(load({"PULSE_STATE_DIR": "/s"})).values()
        assert {type(value) for value in values} <= {str, int, float, bool, type(None)}

    def test_foreign_values(self) -> None:
        """Values that no dump made are refused by a ConfigError."""
        with pytest.raises(ConfigError, match="not understood"):
            restore({"lease_s": "soon"})

    def test_repr_keeps_secrets(self) -> None:
        """The text of settings, as it gets into logs, shows no password and no default."""
        settings = load({"PULSE_DSN": "postgresql://ann:s3cret@h/db", "PULSE_AUTH_USERS": "ann:hash"})
        assert repr(settings) == "Settings(dsn='postgresql://ann:***@h/db', auth_users='***')"

    def test_frozen(self) -> None:
        """Settings cannot be changed after they were checked."""
        with pytest.raises(AttributeError):
            load({}).batch = 0  # type: ignore[misc]
