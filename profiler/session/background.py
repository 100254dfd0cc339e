"""Write a closed window while sampling goes on: in a forked child, which has all tables and touches no target.

A thread would share the interpreter lock with the sampling loop and make it late.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class Background:
    """Runs jobs in children, one after another as they come; wait() says how they ended."""

    def __init__(self) -> None:
        self._children: set[int] = set()
        self.failed = 0

    def start(self, job: Callable[[], int]) -> None:
        """job: returns an exit code; runs in a child of this process."""
        self._reap(os.WNOHANG)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            self._children.add(child)
            return
        code = 1
        try:
            code = job()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(code)

    def wait(self) -> int:
        """Wait for all; number of jobs that failed."""
        self._reap(0)
        return self.failed

    def _reap(self, options: int) -> None:
        for child in sorted(self._children):
            pid, status = os.waitpid(child, options)
            if pid:
                self._children.discard(pid)
                self.failed += status != 0
