"""
Makes the blocking clients, pulse/client/client.py and pulse/queues/queues.py, of the async ones.

Both have the same methods and the same words; what really differs, how they wait, is in their transports. So the one
is the other without ``async`` and ``await``, and nobody keeps two files alike by hand.

usage: python -m tools.generate_client [--check]        --check: write nothing; fail where a file is not up to date
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "pulse/client/async_client.py"
TARGET: Final = ROOT / "pulse/client/client.py"
QUEUES_SOURCE: Final = ROOT / "pulse/queues/async_queues.py"
QUEUES_TARGET: Final = ROOT / "pulse/queues/queues.py"

HEAD: Final = '''"""
The client of pulse for code without an event loop. Threads may share one: they take turns.

Generated from async_client.py: change that file, then ``make generate``.
"""
'''
QUEUES_HEAD: Final = '''"""
Clients of several queues for code without an event loop: a submit goes to the queue of its topic.

Generated from async_queues.py: change that file, then ``make generate``.
"""
'''
# Pattern, and its replacement in the blocking client. A pattern without a match is an error: it is stale.
REPLACEMENTS: Final = (
    (r"\b(async|await) ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\bAsync(Client|Fallback|Transport)\b", r"\1"),
    (r"\basync_transport\b", "transport"),
    (r"^import anyio\n", ""),
    (r"\banyio\.sleep\b", "time.sleep"),
    (r"\bpulse\.connect\(\)", "pulse.Client()"),
    (r"Made by ``connect``\.", "Use it as ``with pulse.Client() as client``."),
    (r', "connect"', ""),
)
QUEUES_REPLACEMENTS: Final = (
    (r"\bawait \((await )(self\.find\(job_id\))\)", r"\2"),
    *REPLACEMENTS[:2],
    (r"\baclose\b", "close"),
    (r"\bAsync(Client|Queues)\b", r"\1"),
    (r"\basync_client\b", "client"),
)


def blocking(source: str) -> str:
    """
    The source of the blocking client.

    Args:
        source: Source of the async one.

    Raises:
        ValueError: *source* lacks something that is replaced here.

    """
    return formatted(HEAD + body_of(replaced(without_connect(source), REPLACEMENTS, SOURCE.name)))


def blocking_queues(source: str) -> str:
    """The source of the blocking ``Queues``; see ``blocking``."""
    return formatted(QUEUES_HEAD + body_of(replaced(source, QUEUES_REPLACEMENTS, QUEUES_SOURCE.name)))


def replaced(text: str, replacements: Sequence[tuple[str, str]], name: str) -> str:
    """*text*, of the file *name*, after all *replacements*; ValueError: there is nothing for one of them."""
    for pattern, instead in replacements:
        text, found = re.subn(pattern, instead, text, flags=re.MULTILINE)
        if not found:
            raise ValueError(f"{name} has nothing like {pattern} any more: remove it from {Path(__file__).name}")
    return text


def body_of(text: str) -> str:
    """*text* without the docstring of the module."""
    return text.partition('\n"""\n')[2]


def without_connect(source: str) -> str:
    """
    *source* without the function ``connect``: the class takes its place, and the sections of its docstring.

    Those say what the arguments are, and give an example.
    """
    tree = ast.parse(source)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "connect")
    client = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AsyncClient")
    lines = source.splitlines(keepends=True)
    told = "".join(lines[function.body[0].lineno : function.body[0].end_lineno or 0])
    sections = told[told.index("    Args:\n") : told.rindex('"""')].rstrip() + "\n\n"
    end = client.body[0].end_lineno or 0
    lines[end - 1 : end] = ["\n", sections, lines[end - 1]]
    del lines[function.lineno - 1 : function.end_lineno]
    return "".join(lines)


def formatted(text: str) -> str:
    """*text* as the linters want it: imports sorted, those that are not used gone, lines rewrapped."""
    ruff = [sys.executable, "-m", "ruff"]
    for step in (["check", "--quiet", "--fix-only", "--select=I,F401"], ["format", "--quiet"]):
        command = [*ruff, *step, f"--stdin-filename={SOURCE}", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say how they are not up to date; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate_client", description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not up to date")
    options = parser.parse_args(arguments)
    stale = 0
    for source, target, make in ((SOURCE, TARGET, blocking), (QUEUES_SOURCE, QUEUES_TARGET, blocking_queues)):
        made = make(source.read_text(encoding="utf-8"))
        if not options.check:
            target.write_text(made, encoding="utf-8")
        elif (found := target.read_text(encoding="utf-8")) != made:
            shown = difflib.unified_diff(
                found.splitlines(), made.splitlines(), target.name, "as generated", lineterm="", n=1
            )
            print(f"{target.name} is not what {source.name} says: make generate", *shown, sep="\n", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
