"""Certificates for tests of TLS, from authorities that live in memory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from tests.support.confidential import confidential


@dataclass(frozen=True, slots=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._authority = trustme.CA(organization_name=name)
        self.file = directory / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def issue(self, file: str, *names: str, expired: bool = False) -> Pair:
        """A certificate for *names*; one that has *expired* did so yesterday."""
        ends = datetime.now(UTC) - timedelta(days=1) if expired else None
        made = self._authority.issue_cert(*names, not_after=ends)
        pair = Pair(self._directory / f"{file}.pem", self._directory / f"{file}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(pair.key))
        confidential(
            pair.key.read_text("ascii").splitlines()[2], f"key of {file}"
        )  # the first line is much like others'
        return pair
