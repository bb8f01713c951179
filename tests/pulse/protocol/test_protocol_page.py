"""``docs/protocol.md`` held against the code: kinds, fields, types, limits, codes, hex dumps and conversations."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pytest
from msgspec import Struct

from pulse import errors, protocol
from pulse.protocol import FrameReader, Result, check_result, decode_any, decode_body, encode
from pulse.store.reading.jobs import ATTEMPT
from pulse.store.statements import STATEMENTS
from tests.support.checking import wiretypes
from tests.support.checking.every import every
from tests.support.checking.markdown import DOCS, blocks, section, table

PAGE: Final = (DOCS / "protocol.md").read_text("utf-8")
HELLO: Final = "3. Hello and welcome"
ERRORS: Final = "4. Requests, answers, errors"
CLIENT: Final = "5. What a client asks"
SERVER: Final = "7. What the server sends"
TABLES: Final[Mapping[str, Mapping[str, type[Struct]]]] = {
    HELLO: {"hello": protocol.Hello}, CLIENT: protocol.CLIENT_KINDS, "6. What a worker sends": protocol.WORKER_KINDS,
    SERVER: protocol.ANSWERS, "9. The supervisor's socket": protocol.SUPERVISOR_KINDS,
}  # fmt: skip
PARTS: Final = {name: getattr(protocol, struct) for struct, name in wiretypes.NAMES.items()}
# A fenced block of section 12: what stands for 16 bytes, and nil.
ID: Final = re.compile(r'\b(ID\d|SESSION)\b(?=[^"]*(?:"[^"]*"[^"]*)*$)')
NO_FIELD: Final = "–"


def _documented(rows: list[dict[str, str]], name: str) -> dict[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for row in rows:
        fields = found.setdefault(row[name], [])
        if row["field"] != NO_FIELD:
            fields.append((row["field"], row["type"], row["default"]))
    return found


def _tables(text: str) -> list[list[dict[str, str]]]:
    return [table(part) for part in re.split(r"\n(?!\|)", text) if "\n|" in f"\n{part}"]


def _frames(block: str) -> list[tuple[str, list[Any]]]:
    return [(line[0], _frame(line[2:])) for line in re.sub(r"\n +", " ", block).splitlines()]


def _frame(text: str) -> list[Any]:
    words = re.sub(r"\bnil\b", "null", ID.sub(r'"\1"', text))
    frame = _with_bytes(json.loads(words))
    assert isinstance(frame, list)
    return frame


def _with_bytes(value: object) -> object:
    match value:
        case str() if re.fullmatch(r"ID\d|SESSION", value):
            return value.encode().ljust(16)
        case list():
            return [_with_bytes(one) for one in value]
        case dict():
            return {key: _with_bytes(one) for key, one in value.items()}
        case _:
            return value


def test_tables_hold_every_kind_with_its_fields() -> None:
    def check(heading: str) -> None:
        expected = {kind: wiretypes.fields(struct) for kind, struct in TABLES[heading].items()}
        assert _documented(table(section(PAGE, heading)), "kind") == expected

    every(TABLES, check)


def test_values_that_occur_in_several_places_are_described_once() -> None:
    _, arrays, maps = _tables(section(PAGE, "2. Values"))
    documented = _documented(arrays, "array") | _documented(maps, "map")
    assert documented == {name: wiretypes.fields(struct) for name, struct in PARTS.items()}
    assert {row["array"] for row in arrays} == {n for n, s in PARTS.items() if s.__struct_config__.array_like}


def test_every_client_request_has_its_answer_described() -> None:
    answers = _tables(section(PAGE, CLIENT))[1]
    named = {kind.strip() for row in answers for kind in row["kind"].split(",") if kind.strip()}
    described = {kind for kind in protocol.CLIENT_KINDS if kind in named or f"{kind.split('.')[0]}.*" in named}
    assert described == set(protocol.CLIENT_KINDS)


def _columns(statement: str) -> set[str]:
    inner = re.sub(r"ARRAY\(.*\n    \)", "history", STATEMENTS[statement].sql, flags=re.DOTALL)
    selected = inner.split("FROM")[0].removeprefix("SELECT").split(",")
    return {re.split(r"[ .]", column.strip())[-1] for column in selected}


@pytest.mark.parametrize(("columns", "start", "end"), [
    (_columns("get_job") - {"history", "is_parent", "signals"}, "A **row** is", "`history` is"),
    (set(ATTEMPT), "`history` is", "A **schedule row**"),
    (_columns("get_schedule"), "A **schedule row**", "A **worker row**"),
])  # fmt: skip
def test_rows_are_described_with_their_columns(columns: set[str], start: str, end: str) -> None:
    text = " ".join(section(PAGE, CLIENT).split())
    assert set(re.findall(r"`(\w+)`", text[text.index(start) : text.index(end)])) - {"history"} == columns


def test_error_codes_are_those_of_the_errors() -> None:
    codes = {row["code"] for row in table(section(PAGE, ERRORS))}
    assert codes == {kind.code for kind in errors.RefusedError.__subclasses__()}


def test_limits_have_the_values_of_the_code() -> None:
    for row in table(section(PAGE, "10. Limits")):
        module, _, name = row["in the code"].rpartition(".")
        value = getattr(importlib.import_module(module), name)
        assert float(row["limit"].split()[0]) == value, row


def test_outcomes_take_the_details_that_are_described() -> None:
    examples: dict[str, Any] = {
        "JSON text or nil": ["{}", None], "text": ["no"], "[seconds, text]": [(5.0, "later")], "seconds": [5.0],
        "[seconds, [name of a signal, number]]": [(5.0, ("approval", 1))], "nil": [None],
        "[text, exit code or nil]": [("died", -9), ("died", None)],
    }  # fmt: skip
    outcomes = _tables(section(PAGE, SERVER))[2]
    [kinds] = [kind for field, kind, _ in wiretypes.fields(PARTS["result"]) if field == "outcome"]
    assert {row["outcome"] for row in outcomes} == set(kinds.split())
    for row in outcomes:
        for detail in examples[row["detail"]]:
            sent = encode("report", 1, {"results": [[bytes(16), 1, row["outcome"], detail]]})
            (frame,) = FrameReader().feed(sent)
            (result,) = decode_body(protocol.Report, frame).results
            assert isinstance(result, Result)
            check_result(result)


def test_hex_dumps_are_the_frames_that_they_claim_to_be() -> None:
    first, second = (_bytes_of(block) for block in blocks(PAGE, "hex"))
    body: dict[str, object] = {"protocol": 1, "role": "client"}
    assert first == encode("hello", 0, body)
    (frame,) = FrameReader().feed(first)
    assert (frame.kind, frame.request, decode_any(frame)) == ("hello", 0, body)
    job = bytes.fromhex("0199a1b2c3d47e5f8a0b1c2d3e4f5a6b")
    assert second == encode("report", 7, {"results": [[job, 2, "ok", '{"ok": true}']]})


def _bytes_of(dump: str) -> bytes:
    """The bytes of a dump: pairs of hex digits at the start of each line, before the remark."""
    words = [re.match(r"\s*((?:[0-9a-f]{2} ?)*)(?:\s|$)", line) for line in dump.splitlines()]
    return bytes.fromhex("".join(word[1] for word in words if word))


def test_lengths_in_the_text_are_those_of_the_dumps() -> None:
    for block in blocks(PAGE, "hex"):
        data = _bytes_of(block)
        assert f"N = {len(data) - 4}" in block.splitlines()[0]
    assert f"is these {len(_bytes_of(blocks(PAGE, 'hex')[0]))} bytes" in PAGE


def test_conversations_are_valid() -> None:
    conversations = blocks(section(PAGE, "12. Conversations"), "frames")
    assert len(conversations) == 4
    every(conversations, _is_valid)


def _is_valid(conversation: str) -> None:
    role, asked = "", dict[int, str]()
    allowed: Mapping[str, type[Struct]]
    for direction, (kind, request, body) in _frames(conversation):
        if direction == ">":
            role = body.get("role", role)
            allowed = {"hello": protocol.Hello, **protocol.ALLOWED[protocol.Role(role)]}
            if request is not None:
                asked[request] = kind
        else:
            allowed = {**protocol.ANSWERS, "ok": protocol.NoBody}
            assert request is None or asked.pop(request)
        (frame,) = FrameReader().feed(encode(kind, request, body))
        decode_body(allowed[kind], frame)
        known = {field for field, _, _ in wiretypes.fields(allowed[kind])}
        assert kind == "ok" or set(body) <= known, (kind, body)
    assert asked == {}
