"""Programs that run in the environments of the peers: nothing here may import pulse."""

from __future__ import annotations
