"""Codecs for tests."""

from __future__ import annotations


class Backwards:
    """A codec that anybody can read."""

    id = "backwards"

    def encode(self, name: str, text: str) -> str:
        return text[::-1]

    def decode(self, name: str, data: str) -> str:
        return data[::-1]
