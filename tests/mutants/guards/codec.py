"""Envelopes: what is one, who opens it, and that no error tells what is in it."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_UNIT: Final = "unit/test_codec.py::"
_NONE: Final = _UNIT + "test_what_is_no_envelope_stays"
_CANNOT: Final = _UNIT + "test_who_cannot_read"
_SENT: Final = _UNIT + "test_what_a_client_sends"
_READ: Final = _UNIT + "test_what_a_client_reads"

CODEC: Final = Guarded(
    "pulse.security.codec",
    {
        _UNIT + "test_there_and_back": [
            ("seal", "BY: codec.id, DATA: codec.encode(name, text)", "BY: codec.id, DATA: text"),
            ("unseal", "return json_text.loads(codec.decode(name, data))", "return data"),
            ("unseal", "if found is None:", "if True:"),
        ],
        _UNIT + "test_what_is_not_encrypted": [
            ("_envelope", "isinstance(by, str) and ", ""),
            ("_envelope", "not isinstance(value, dict) or ", ""),
            ("_envelope", "value.keys() != {BY, DATA}", "not {BY, DATA} <= value.keys()"),
            ("sealed_by", "None if found is None else ", ""),
            ("sealed_by", "(ValueError, RecursionError)", "RecursionError"),
        ],
        _CANNOT: [
            ("unseal", "if codec is None:", "if False:"),
            ("unseal", "if by != codec.id:", "if False:"),
            ("unseal", "found[0][:_LONGEST_SHOWN]", "found[0]"),
            ("unseal", 'cannot read it: {type(error).__name__}") from None', 'cannot read it: {error}") from None'),
            ("unseal", '{type(error).__name__}") from None', '{type(error).__name__}") from error'),
        ],
        _SENT: [
            ("seal", "{type(error).__name__}", "{error}"),
        ],
        _UNIT + "test_what_is_no_codec": [
            ("checked", "if not isinstance(given, Codec):", "if False:"),
            ("checked", "not isinstance(name, str) or ", ""),
            ("checked", " or not _ID.fullmatch(name)", ""),
        ],
    },
    is_part=True,
)
SEALED: Final = Guarded(
    "pulse.client.sealing",
    {
        _SENT: [
            ("seal_request", "_sealed(codec, request.kind, job) for job in jobs", "job for job in jobs"),
            ("seal_request", "body=_sealed(codec, request.kind, body)", "body=body"),
            ("_sealed", 'if "args" not in body:', "if False:"),
            ("_sealed", 'if "name" not in body:', "if False:"),
            ("_sealed", 'body["name"], body["args"]', '"a", body["args"]'),
        ],
        _READ: [
            ("_job", "args=opened(codec, job.name, job.args)", "args=job.args"),
            ("_job", "result=opened(codec, job.name, job.result)", "result=job.result"),
            ("_schedule", "args=opened(codec, schedule.name, schedule.args)", "args=schedule.args"),
            ("open_answer", "tuple(_job(codec, one) for one in answer.jobs)", "answer.jobs"),
            ("open_answer", "tuple(_schedule(codec, one) for one in answer.schedules)", "answer.schedules"),
        ],
    },
    is_part=True,
)
ENCRYPTION: Final = Guarded(
    "pulse.encryption",
    {
        _UNIT + "test_there_and_back": [
            ("FernetCodec.encode", "self._fernet.encrypt(text.encode()).decode()", "text"),
        ],
        _UNIT + "test_keys_are_changed": [
            ("_fernet", "MultiFernet(made)", "MultiFernet(made[:1])"),
            ("_fernet", "MultiFernet(made)", "MultiFernet(made[::-1])"),
        ],
        _UNIT + "test_where_keys_come_from": [
            ("_fernet", "if not made:", "if False:"),
            ("_fernet", "{place}: number {number} is no key", "{place}: {key!r} is no key"),
            ("FernetCodec.__repr__", '"FernetCodec(...)"', 'f"FernetCodec({vars(self)})"'),
        ],
    },
    is_part=True,
)
ATTEMPT: Final = Guarded(
    "pulse.worker.execution.attempt",
    {
        _UNIT + "test_what_a_worker_does": [
            ("Attempt.ending", "seal(codec, self.job.name, ending.detail)", "ending.detail"),
            ("Attempt.ending", 'ending.outcome != "ok" or ', ""),
            ("Attempt.ending", " or not isinstance(ending.detail, str)", ""),
            ("Attempt._opened", "None if self.handler is None else self.handler.codec", "None"),
        ],
        _UNIT + "test_a_worker_that_cannot_read": [
            ("Attempt._opened", 'raise UnreadableError(f"the checkpoint is {error}") from None', "return checkpoint"),
        ],
    },
    is_part=True,
)
