"""Processor time without samples, as a block of its own in the profile and a sentence in the summary.

Most threads and processes that live shorter than the time between two samples are never sampled. Their processor time
is known from the kernel's accounts. The profile has it below the process that was asked for.
"""

from __future__ import annotations

import numpy as np

from pyprof.collectors.cpu_accounts import NO_ACCOUNT, unseen
from pyprof.model.markers import NOT_SAMPLED
from pyprof.model.profile import ThreadInfo
from pyprof.model.stacks import marker_key
from pyprof.records import replace
from pyprof.session.recorder import Window
from pyprof.session.rows import UNKNOWN


def with_unseen(window: Window) -> Window:
    """The window with a row for each process tree whose time was not all sampled, and the sentence for the summary."""
    found = unseen(window.before.accounts, window.after.accounts)
    if not found:
        return window
    node = window.stacks.child(0, marker_key(NOT_SAMPLED))
    n = len(found)
    leaders = {info.tid: info for info in sorted(window.threads, key=lambda info: info.started) if info.tid == info.pid}
    infos = [leaders.get(each.pid) or ThreadInfo(each.pid, each.pid, each.name, each.name) for each in found]
    known = {key: number for number, key in window.keys.items()}
    numbers = [known.setdefault(info.key, -1 - at) for at, info in enumerate(infos)]
    return replace(
        window,
        threads=(*window.threads, *(info for info in infos if info.pid not in leaders)),
        keys={number: key for key, number in known.items()},
        time_ns=np.append(window.time_ns, np.full(n, window.start_ns + window.duration_ns, np.int64)),
        node=np.append(window.node, np.full(n, node, np.int32)),
        thread=np.append(window.thread, np.array(numbers, np.int32)),
        weight=np.append(window.weight, np.ones(n, np.int64)),
        length_ns=np.append(window.length_ns, np.array([each.unseen_ns for each in found], np.int64)),
        state=np.append(window.state, np.zeros(n, np.int32)),
        cpu=np.append(window.cpu, np.full(n, UNKNOWN, np.int32)),
    )


def processor_time(window: Window) -> tuple[float, float, float]:
    """Seconds on processors; of them those that no sample stands for; and those in sampling times that were missed."""
    before, after = window.before.accounts, window.after.accounts
    spent = due = 0
    for root, account in after.items():  # one whose tree has ended may be in no later account
        old = before.get(root, NO_ACCOUNT)
        spent += max(account.spent_ns - old.spent_ns, 0)
        due += max(account.due_ns - old.due_ns, 0)
    missing = sum(each.unseen_ns for each in unseen(before, after))
    return round(spent / 1e9, 3), round(missing / 1e9, 3), round((spent - due) / 1e9, 3)


def sentence(spent: float, missing: float) -> str:
    """What the reader of a summary should know."""
    return (
        f"Not sampled: {missing:.2f} s of {spent:.2f} s of processor time ({100 * missing / spent:.0f} %), by threads "
        "or processes that ran too short to be seen: marked [not sampled]"
    )
