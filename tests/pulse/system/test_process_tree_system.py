"""A process that takes another mark."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from pulse.system import process_tree
from tests.support.waiting import until

pytestmark = pytest.mark.process


def test_a_process_takes_another_mark() -> None:
    """Others see it, and its children have it; one of another length or form changes nothing."""
    mark, taken = process_tree.new_mark(), process_tree.new_mark()
    script = (
        "import subprocess, sys\n"
        "from pulse.system.process_tree import mark_of, take_mark\n"
        "for wrong in (sys.argv[1] + '0', sys.argv[1][:-1] + 'x', ''):\n"
        "    try:\n"
        "        take_mark(wrong)\n"
        "    except ValueError:\n"
        "        continue\n"
        "    sys.exit('taken: ' + wrong)\n"
        "print(mark_of('self'), flush=True)\n"
        "take_mark(sys.argv[1])\n"
        "subprocess.run(['cat'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, taken],
        env={**os.environ, process_tree.MARK: mark},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().strip() == mark
        (child,) = until(psutil.Process(process.pid).children, "its child")
        until(lambda: process_tree.mark_of(child.pid) == taken, "its environment")
        assert process_tree.mark_of(process.pid) == taken
        process.stdin.close()
    assert process.returncode == 0
