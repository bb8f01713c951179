"""A whole system as people use it, by the command line, and by the protocol."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from tests.support.systems.system import Body, Peer, new_job
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until


@dataclass(frozen=True, slots=True)
class Site:
    whole: Whole
    client: Peer
    topic: str

    def job(self, **more: object) -> uuid.UUID:
        return self.jobs(1, **more)[0]

    def jobs(self, count: int, **more: object) -> list[uuid.UUID]:
        made = self.client.submit(*(new_job(topic=self.topic, **more) for _ in range(count)))
        return [uuid.UUID(bytes=one) for one in made]

    # What people type, and read.

    def ctl(self, *words: str, code: int = 0) -> str:
        """What a command prints; what it prints on stderr, where it must end with an error."""
        done = self.whole.command("ctl", *words)
        assert (done.returncode, bool(done.stderr)) == (code, code != 0), done
        return done.stderr if code else done.stdout

    def told(self, *words: str) -> Any:
        return json.loads(self.ctl(*words, "--json"))

    def listed(self, *words: str) -> list[Any]:
        return list(self.told("jobs", "list", "--topic", self.topic, *words)["jobs"])

    def noted(self, **wanted: object) -> list[Any]:
        found = self.told("audit", "--since", "1h", "--limit", "1000")["audit"]
        return [one for one in found if all(one[key] == value for key, value in wanted.items())]

    def said(self, job: uuid.UUID) -> list[str]:
        return self.ctl("jobs", "why", str(job)).splitlines()

    # The same on the wire.

    def why(self, job: uuid.UUID) -> list[Body]:
        reasons: list[Body] = self.client.call("jobs.why", id=job.bytes)["reasons"]
        return reasons

    def codes(self, job: uuid.UUID) -> list[str]:
        return [reason["code"] for reason in self.why(job)]

    def until_codes(self, job: uuid.UUID, *codes: str) -> None:
        until(lambda: self.codes(job) == [*codes], f"{codes} of {job}; there was {self.codes(job)}")
