"""One handler process, as its pool parent sees it: its notes."""

from __future__ import annotations

import os

from pulse.worker.pool.child import Child, new_pipes


def test_notes_that_are_lost_are_read_no_more() -> None:
    with new_pipes() as pipes:
        child = Child(pipes, pid=os.getpid(), pidfd=-1)
        os.write(pipes.theirs.notes_fd, b"?\0\0\0\0")
        assert child.read_notes() == ([], False)
        assert child.read_notes() == ([], False)
    for one in (pipes.notes_fd, pipes.name_fd):
        os.close(one)
    pipes.stack_file.close()
