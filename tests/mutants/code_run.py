"""Tries mutants of code: with each of them in force, the test that is named for it must fail."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutants import hook
from tests.mutants.code import ROOT, TESTS, CodeMutant
from tests.mutants.warm import TIMED_OUT, Order

SIDE_BY_SIDE: Final = 2
TESTS_FAILED: Final = 1  # exit codes of pytest
PASSED: Final = 0
LIMIT_S: Final = 180.0  # for one mutant; a test that hangs fails by itself before
ALL_LIMIT_S: Final = 1800.0  # for all of their tests
_SITE: Final = Path(__file__).parent / "site"


class Warm:
    """
    A process that runs tests; see ``warm``.

    Args:
        environment: For the tests, on top of this process's own.
        directory: For files.
    """

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self._environment = environment
        self._directory = directory
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it."""
        environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(self._directory), **self._environment}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.mutants.warm", cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE
        )

    async def close(self) -> None:
        """End it."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def check(self, mutant: CodeMutant) -> str:
        """Run the test with *mutant* in force; what is wrong, '' when it failed, as it must."""
        source = self._directory / "mutant.py"
        seen = source.with_suffix(hook.SEEN_SUFFIX)
        seen.unlink(missing_ok=True)
        source.write_text(mutant.mutated(), "utf-8")
        environment = {hook.MODULE: mutant.module, hook.SOURCE: str(source), "PYTHONPATH": str(_SITE)}
        code, output = await self.run([mutant.killer], environment, LIMIT_S)
        match code:
            case _ if not seen.exists():
                return f"its module was never imported:\n{output}"
            case 1:
                return ""
            case 0:
                return "survived"
            case _:
                return f"{'not done in time' if code == TIMED_OUT else f'pytest ended with {code}'}:\n{output}"

    async def run(self, tests: Sequence[str], environment: dict[str, str], limit_s: float) -> tuple[int, str]:
        """The exit code of these tests, and the end of what they printed."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        output = self._directory / "output"
        order = Order([str(TESTS / test) for test in tests], environment, str(output), limit_s)
        self._process.stdin.write(order.line())
        code = int(await self._process.stdout.readline())
        return code, output.read_text("utf-8", errors="replace")[-3000:]


async def run(mutants: Sequence[CodeMutant], environment: dict[str, str]) -> list[str]:
    """What went wrong, a paragraph each."""
    wrong: list[str] = []
    waiting = list(reversed(mutants))

    async def work(warm: Warm) -> None:
        while waiting:
            mutant = waiting.pop()
            problem = await warm.check(mutant)
            print("." if not problem else "S", end="", flush=True)  # noqa: T201 - progress
            if problem:
                wrong.append(f"{mutant}\n    {mutant.killer}: {problem}")

    with tempfile.TemporaryDirectory(prefix="pulse-mutants-") as directory:
        places = [Path(directory) / str(number) for number in range(SIDE_BY_SIDE)]
        pool = [Warm(environment, place) for place in places]
        for place, warm in zip(places, pool, strict=True):
            place.mkdir()
            await warm.start()
        killers = sorted({mutant.killer for mutant in mutants})
        code, output = await pool[0].run(killers, {}, ALL_LIMIT_S)
        if code == PASSED:
            await asyncio.gather(*map(work, pool))
        else:
            wrong.append(f"without any mutant pytest ended with {code}:\n{output}")
        for warm in pool:
            await warm.close()
    print()  # noqa: T201
    return wrong
