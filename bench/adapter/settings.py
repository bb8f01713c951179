"""What the harness asks for, read from the environment once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SCENARIO = "long_horizon"
MODES = ("fixed", "depth-target")
PACINGS = ("adapter", "harness")


class SettingsError(Exception):
    """The harness asks for what this adapter does not have; the message says what."""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    The contract's variables, by their meaning.

    Attributes:
        mode: ``fixed``: a rate; ``depth-target``: so many jobs waiting.
        pacing: Of the fixed mode: ``adapter`` keeps time itself, ``harness`` sends ``ENQUEUE n`` lines to stdin.
        rate: Jobs per second.
        rate_file: Where the harness writes the rate while it runs; None: it does not.
        instance: Number of this replica; only replica 0 reports what is true of the whole.
    """

    database_url: str
    mode: str
    pacing: str
    rate: float
    rate_file: Path | None
    batch_max: int
    batch_s: float
    target_depth: int
    workers: int
    payload_bytes: int
    work_ms: float
    sample_s: float
    instance: int
    produces: bool

    @property
    def db_name(self) -> str:
        """The database of the URL."""
        return urlsplit(self.database_url).path.lstrip("/")

    @property
    def observes(self) -> bool:
        """Whether this replica reports what is true of the whole."""
        return self.instance == 0

    def rate_now(self) -> float:
        """Jobs per second, as the harness wants it at this moment."""
        try:
            return float(self.rate_file.read_text("ascii")) if self.rate_file else self.rate
        except (OSError, ValueError):  # not written yet, or being written
            return self.rate


def read(env: Mapping[str, str]) -> Settings:
    """
    The settings, with the contract's defaults.

    Raises:
        SettingsError: A value is missing, not a number, or names what there is not.
    """
    instance = int(_number(env, "BENCH_INSTANCE_ID", 0))
    only_first = bool(_number(env, "PRODUCER_ONLY_INSTANCE_ZERO", 0))
    rate_file = env.get("PRODUCER_RATE_CONTROL_FILE")
    if not env.get("DATABASE_URL"):
        raise SettingsError("DATABASE_URL is not set")
    _one_of(env, "SCENARIO", SCENARIO, (SCENARIO,))
    return Settings(
        database_url=env["DATABASE_URL"],
        mode=_one_of(env, "PRODUCER_MODE", "fixed", MODES),
        pacing=_one_of(env, "PRODUCER_PACING", "adapter", PACINGS),
        rate=_number(env, "PRODUCER_RATE", 800),
        rate_file=Path(rate_file) if rate_file else None,
        batch_max=max(1, int(_number(env, "PRODUCER_BATCH_MAX", 128))),
        batch_s=max(1.0, _number(env, "PRODUCER_BATCH_MS", 25)) / 1000,
        target_depth=int(_number(env, "TARGET_DEPTH", 1000)),
        workers=max(1, int(_number(env, "WORKER_COUNT", 32))),
        payload_bytes=int(_number(env, "JOB_PAYLOAD_BYTES", 256)),
        work_ms=_number(env, "JOB_WORK_MS", 1),
        sample_s=max(0.1, _number(env, "SAMPLE_EVERY_S", 5)),
        instance=instance,
        produces=instance == 0 or not only_first,
    )


def _number(env: Mapping[str, str], key: str, default: float) -> float:
    try:
        return float(env.get(key) or default)
    except ValueError:
        raise SettingsError(f"{key} is {env[key]!r}, not a number") from None


def _one_of(env: Mapping[str, str], key: str, default: str, allowed: tuple[str, ...]) -> str:
    value = env.get(key) or default
    if value not in allowed:
        raise SettingsError(f"{key} is {value!r}, not one of {', '.join(allowed)}")
    return value
