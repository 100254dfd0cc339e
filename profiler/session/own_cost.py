"""What this process of pyprof has cost so far."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

from pyprof.collectors.linux import procfs
from pyprof.objfile.opener import current


class OwnCost(NamedTuple):
    cpu_s: float
    """Processor time, user and system."""
    max_rss_kb: int
    """The most memory that was resident, in KiB: the kernel's VmHWM. Not getrusage's ru_maxrss, which begins with
    that of the process that started the program: it is kept through fork and exec."""


def own_cost() -> OwnCost:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    try:
        words = procfs.parse_status(current().about(os.getpid(), "status")).get("VmHWM", "0").split()
    except OSError:  # what could open it is gone
        words = ["0"]
    return OwnCost(usage.ru_utime + usage.ru_stime, int(words[0]))
