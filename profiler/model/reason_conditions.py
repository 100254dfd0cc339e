"""Reasons (see reason_table.py) why an agent does not do all of its work. They hold until their cause is gone.

Their names appear in the log, in /healthz and as a label of the metric pyprof_agent_failing.
"""

from __future__ import annotations

from pyprof.model.reason import Reason, Stage

# fmt: off
CONDITIONS = (
    Reason("loop_stuck", Stage.AGENT, "The agent's main loop has not run for 30 seconds.",
           retry="a restart: WatchdogSec= of the unit, or a liveness probe"),
    Reason("no_windows", Stage.AGENT,
           "No window has ended for three times its length and a minute, though there are processes to record.",
           retry="a restart; the log says what failed before"),
    Reason("recording_failed", Stage.AGENT,
           "A recording did not begin or ended early. The agent starts it again after 30 seconds.",
           retry="pyprof doctor, which says what the agent may not do"),
    Reason("spool_disk_full", Stage.AGENT,
           "The disk of the spool is full. The oldest segments make room; what still has none waits for one window.",
           retry="room on that disk, or a smaller spool.max_bytes"),
    Reason("spool_failed", Stage.AGENT,
           "The spool could not write a window or a checkpoint. Segments wait in memory for one window.",
           retry="the disk and the rights of spool.path"),
    Reason("push_failing", Stage.AGENT, "A sink takes no segment at the moment. Segments wait in its queue.",
           retry="what the cause says"),
    Reason("push_refused", Stage.AGENT,
           "A sink has refused a segment for good in the last ten minutes. It is in refused/ of the spool.",
           retry="what the cause says"),
    Reason("push_lost", Stage.AGENT,
           "In the last ten minutes the spool has dropped segments that a sink had not taken.",
           retry="larger limits of the spool, and a receiver that answers"),
    Reason("clock_differs", Stage.AGENT,
           "The clocks of agent and receiver differ by more than 30 seconds: queries look in the wrong place.",
           retry="NTP on both hosts"),
    Reason("budget_exceeded", Stage.AGENT,
           "The agent costs more than its budget, and doing less is impossible or did not help.",
           retry="a larger budget (needed_cpu_percent, needed_memory), longer windows.every and windows.durable, or "
                 "rules for fewer processes"),
    Reason("reload_failed", Stage.AGENT, "The configuration was wrong at the last reload. The one before applies.",
           retry="pyprof agent --config FILE --check"),
)
# fmt: on
