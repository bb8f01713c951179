"""Connection strings and ids."""

from __future__ import annotations

import time
import uuid
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.common import ids
from pulse.common.dsn import as_url, database_of, hosts_of, is_dsn, may_be_same
from pulse.config import redact_dsn


@pytest.mark.parametrize(("dsn", "shown"), [
    ("postgresql:///db", "postgresql:///db"),
    ("postgresql://ann@h:5432/db", "postgresql://ann@h:5432/db"),
    ("postgresql://ann:pw@h:5432/db", "postgresql://ann:***@h:5432/db"),
    ("postgres://ann:p%40w@h1,h2:5433/db?sslmode=require", "postgres://ann:***@h1,h2:5433/db?sslmode=require"),
    ("postgresql://:pw@h", "postgresql://:***@h"),
    ("postgresql://ann:p@w@h/db", "postgresql://ann:***@h/db"),
    ("postgresql://ann:p/w?x#y@h/db", "postgresql://ann:***@h/db"),
    ("postgresql:///db?user=ann&password=pw&host=h", "postgresql:///db?user=ann&password=***&host=h"),
    ("postgresql:///db?pass%77ord=pw", "postgresql:///db?pass%77ord=***"),
    ("postgresql:///db?sslpassword=pw", "postgresql:///db?sslpassword=***"),
    ("postgresql:///db?passfile=/f", "postgresql:///db?passfile=/f"),
    ("host=h password=pw dbname=db", "host=h password=*** dbname=db"),
    ("host=h PASSWORD = pw dbname=db", "host=h PASSWORD = *** dbname=db"),
    (r"password='it\'s me' host=h", "password=*** host=h"),
    (r"password=two\ words host=h", "password=*** host=h"),
    ("host=h sslpassword=pw", "host=h sslpassword=***"),
    ("password='never closed host=h", "password=***"),
    ("host=h dbname=db", "host=h dbname=db"),
    ("", ""),
])  # fmt: skip
def test_passwords_are_hidden(dsn: str, shown: str) -> None:
    assert redact_dsn(dsn) == shown


@pytest.mark.parametrize(("dsn", "urls"), [
    ("postgresql:///db", ["postgresql:///db"]),
    ("postgresql:///db?host=/run/x&port=5", ["postgresql:///db?host=/run/x&port=5"]),
    ("postgresql://u@a:1,b:2/db?x=1", ["postgresql://u@a:1/db?x=1", "postgresql://u@b:2/db?x=1"]),
    ("postgresql:///db?host=a,b&port=1,2", ["postgresql:///db?host=a&port=1", "postgresql:///db?host=b&port=2"]),
    (
        "host=a,b port=1 dbname=db",
        ["postgresql:///?host=a&port=1&dbname=db", "postgresql:///?host=b&port=1&dbname=db"],
    ),
])  # fmt: skip
def test_each_host_has_a_url(dsn: str, urls: list[str]) -> None:
    assert hosts_of(dsn) == urls


SECRET = st.text(st.sampled_from("Zq/?#@:&=' \\%,[]"), min_size=1, max_size=12).map(lambda text: f"Zq9{text}Zq9")


@given(secret=SECRET, tail=st.sampled_from(["@h/db", "@h:5432/db?sslmode=require", "@h1,h2/db"]))
def test_no_password_leaks(secret: str, tail: str) -> None:
    """Whatever is between the colon and the host of a URL, or in quotes, is hidden; the rest stays."""
    assert "Zq9" not in redact_dsn(f"postgresql://ann:{secret}{tail}")
    quoted = secret.replace("\\", "\\\\").replace("'", "\\'")
    assert redact_dsn(f"host=h password='{quoted}' dbname=db") == "host=h password=*** dbname=db"


@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    for one in (text, f"postgresql://{text}"):
        redact_dsn(one)
        database_of(one)
        if is_dsn(one):
            as_url(one)


@pytest.mark.parametrize(("dsn", "database"), [
    ("postgresql://ann:hidden-word@h:5433/db?sslmode=require", "h:5433/db"),
    ("postgres://h/db", "h:5432/db"),
    ("postgresql://h2:1,h1/db", "h1:5432,h2:1/db"),
    ("postgresql://[::1]:1,[::2]/db", "[::1]:1,[::2]:5432/db"),
    ("postgresql:///db?host=/run/pg&port=1&user=ann", "/run/pg:1/db"),
    ("postgresql://%2Frun%2Fpg/d%40b", "/run/pg:5432/d@b"),
    ("postgresql:///?host=/a,/b&port=1,2&dbname=db", "/a:1,/b:2/db"),
    ("postgresql:///?host=/a,/b&port=1&database=db", "/a:1,/b:1/db"),
    ("host=h port=1 dbname=db user=ann password=hidden-word", "h:1/db"),
    ("service=staging", ":5432/?service=staging"),
    ("postgresql://ann:hidden/word@h/db", ""),
    ("nonsense", ""),
])  # fmt: skip
def test_which_database_it_is(dsn: str, database: str) -> None:
    assert database_of(dsn) == database


@pytest.mark.parametrize(("one", "other", "is_same"), [
    ("h1:1,h2:1/db", "h1:1/db", True), ("h1:1,h2:1/db", "h2:1,h3:1/db", True), ("h1:1/db", "h1:2/db", False),
    ("h1:1/db", "h1:1/staging", False), ("/run/pg:1/db", "/run/pg:1/db", True), ("", "", False),
])  # fmt: skip
def test_whether_it_may_be_the_same(one: str, other: str, is_same: bool) -> None:
    """One host in common is enough: a client may use any one of several."""
    assert may_be_same(one, other) is may_be_same(other, one) is is_same


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
def test_keywords_keep_their_values(value: str) -> None:
    assert as_url("postgres://u@h/db") == "postgres://u@h/db"
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    query = urlsplit(as_url(f"host=h user = ann password='{quoted}'")).query
    assert parse_qs(query, keep_blank_values=True) == {"host": ["h"], "user": ["ann"], "password": [value]}


def test_what_they_hold() -> None:
    before_ns = time.time_ns()
    made = [uuid.UUID(bytes=one) for one in ids.uuid7s(500)]
    after_ns = time.time_ns()
    for one in made:
        assert (one.version, one.variant) == (7, uuid.RFC_4122)
        milliseconds, fraction = one.int >> 80, one.int >> 64 & 0xFFF
        assert before_ns - 1000 <= milliseconds * 1_000_000 + fraction * 1_000_000 // 4096 <= after_ns
    assert made == sorted(made, key=lambda one: one.int >> 64)


@given(st.integers(0, 2**62))
def test_any_time_fits(now_ns: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ns)
        made = ids.uuid7()
    assert made.int >> 80 == now_ns // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_they_are_random() -> None:
    made = [
        int.from_bytes(one, "big") & 2**62 - 1 for one in [*ids.uuid7s(300), *(ids.uuid7().bytes for _ in range(300))]
    ]
    assert len(set(made)) == len(made)
    for bit in range(62):
        assert {value >> bit & 1 for value in made} == {0, 1}
