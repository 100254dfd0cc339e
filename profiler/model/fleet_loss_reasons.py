"""Reasons (see loss_reason_table.py) of the agent and the server: unsent segments, refusals, conditions of the agent.

Their names appear in responses, in logs and as labels of metrics. CONDITIONS hold until their cause is gone; they also
appear in /healthz.
"""

from __future__ import annotations

from pyprof.model.reason_type import Reason, Stage

# fmt: off
PUSH = (
    Reason("push_later_unreachable", Stage.PUSH,
           "The receiver cannot be reached.",
           hint="check that the receiver runs, the network, and url and proxy of the sink",
           title="push: later, no connection"),
    Reason("push_later_timeout", Stage.PUSH,
           "The receiver did not answer in the sink's timeout.",
           hint="check the receiver's load and the network, or set a longer timeout of the sink",
           title="push: later, no answer in time"),
    Reason("push_later_insecure", Stage.PUSH,
           "The receiver's certificate is not known here, or TLS failed otherwise.",
           hint="set ca_file of the sink, or http:// in its url if the receiver has no TLS",
           title="push: later, no secure connection"),
    Reason("push_later_credentials", Stage.PUSH,
           "A file with a token or a password cannot be read, or others may read it.",
           hint="give the file to root or the agent's user, with mode 600",
           title="push: later, the file of a token or password"),
    Reason("push_later_unauthorized", Stage.PUSH,
           "The receiver or the proxy rejects the credentials.",
           hint="check token_file, or user and password_file, of the sink",
           title="push: later, the credentials are not taken"),
    Reason("push_later_not_there", Stage.PUSH,
           "The receiver has no such service at this address.",
           hint="check url and type of the sink", title="push: later, there is no such service"),
    Reason("push_later_limited", Stage.PUSH,
           "The receiver limits the rate of requests.",
           hint="raise the limits of the receiver", title="push: later, too much at a time"),
    Reason("push_later_unavailable", Stage.PUSH,
           "The receiver reports an internal error.",
           hint="read the receiver's log", title="push: later, the receiver failed"),
    Reason("push_later_redirected", Stage.PUSH,
           "The receiver redirects the request. Redirects are not followed, because credentials are for the "
               "configured host only.",
           hint="set url of the sink to the new address", title="push: later, the receiver is elsewhere"),
    Reason("push_later_nonsense", Stage.PUSH,
           "The response is not from a receiver of this type; it may be from a proxy.",
           hint="check url and type of the sink", title="push: later, the answer is none"),
    Reason("push_later_disk", Stage.PUSH,
           "The folder does not exist, is full, or may not be written.",
           hint="check the mount, the free space and the rights of the sink's folder",
           title="push: later, the folder does not take it"),
    Reason("push_later_spool", Stage.PUSH,
           "The agent cannot read its own spool or cannot remove files from it, so the sink's queue stands still.",
           hint="check the disk and the rights of the agent's spool (spool.path)",
           title="push: later, the agent's own spool"),
    Reason("push_later_no_package", Stage.PUSH,
           "The Python package for the address of a bucket is not installed where the agent runs.",
           hint="pip install PACKAGE, such as s3fs for s3://", title="push: later, no package for the bucket"),
    Reason("push_later_otherwise", Stage.PUSH,
           "The receiver sent an unexpected response, or the sink failed in another way.",
           hint="read the receiver's log", title="push: later, another answer"),
    Reason("push_refused_bad_request", Stage.PUSH,
           "The receiver rejects the request as malformed.",
           hint="read the receiver's log", title="push: refused, the receiver does not want it"),
    Reason("push_refused_too_large", Stage.PUSH,
           "The receiver rejects requests of this size.",
           hint="raise the limits of the receiver", title="push: refused, it is too large"),
    Reason("push_refused_too_old", Stage.PUSH,
           "The window is older than the receiver accepts.",
           hint="set a larger max_age of the sink, if the receiver accepts older windows",
           title="push: refused, it is too old"),
    Reason("push_refused_too_new", Stage.PUSH,
           "The window ends later than the receiver's clock allows.",
           hint="set the clocks of both hosts", title="push: refused, it ends in the future"),
    Reason("push_refused_too_many_series", Stage.PUSH,
           "The receiver limits how many different sets of labels a tenant may send in a day.",
           hint="use fewer labels in the agent's rules, or set a larger limits.series of the server",
           title="push: refused, it has more sets of labels than the receiver takes"),
    Reason("push_refused_rejected", Stage.PUSH,
           "The receiver accepted a part and rejected some profiles.",
           hint="read the receiver's log", title="push: refused, the receiver rejected profiles of it"),
    Reason("push_refused_unreadable", Stage.PUSH,
           "The segment, or its conversion for the receiver, cannot be read.",
           title="push: refused, it cannot be read"),
    Reason("push_refused_never_taken", Stage.PUSH,
           "The receiver failed repeatedly at this segment, and accepted others meanwhile.",
           hint="read the receiver's log", title="push: refused, others are taken, it is not"),
)
# fmt: on


# fmt: off
CONDITIONS = (
    Reason("loop_stuck", Stage.AGENT, "The agent's main loop has not run for 30 seconds.",
           hint="restart the agent; WatchdogSec= of the unit or a liveness probe does so"),
    Reason("no_windows", Stage.AGENT,
           "No window has ended for three times its length and a minute, though there are processes to record.",
           hint="restart the agent; its log says what failed before"),
    Reason("recording_failed", Stage.AGENT,
           "A recording did not begin or ended early. The agent starts it again after 30 seconds.",
           hint="run pyprof doctor, which says what the agent may not do"),
    Reason("spool_disk_full", Stage.AGENT,
           "The disk of the spool is full. The oldest segments make room; what still has none waits for one window.",
           hint="free space on that disk, or set a smaller spool.max_bytes"),
    Reason("spool_failed", Stage.AGENT,
           "The spool could not write a window or a checkpoint. Segments wait in memory for one window.",
           hint="check the disk and the rights of spool.path"),
    Reason("push_failing", Stage.AGENT, "A sink takes no segment at the moment. Segments wait in its queue.",
           hint="do what the cause says"),
    Reason("push_refused", Stage.AGENT,
           "A sink has refused a segment for good in the last ten minutes. It is in refused/ of the spool.",
           hint="do what the cause says"),
    Reason("push_lost", Stage.AGENT,
           "In the last ten minutes the spool has dropped segments that a sink had not taken.",
           hint="raise the limits of the spool, and repair the receiver"),
    Reason("push_slow", Stage.AGENT,
           "A sink takes segments too slowly: a request took ten seconds or more, or its queue was never empty for a "
           "minute.",
           hint="see what slows the receiver or the way to it (push_request_seconds), or send less: longer "
           "windows.every, fewer services"),
    Reason("clock_differs", Stage.AGENT,
           "The clocks of agent and receiver differ by more than 30 seconds: queries look in the wrong place.",
           hint="run NTP on both hosts"),
    Reason("budget_exceeded", Stage.AGENT,
           "The agent costs more than its budget. The last reduction did not help, or a smaller effort would not help; "
           "it tries again ever more rarely.",
           hint="set a larger budget (needed_cpu_percent, needed_memory), longer windows.every and windows.durable, or "
           "choose fewer processes"),
    Reason("processes_left_out", Stage.AGENT,
           "The memory budget leaves out processes: their sums are exact, but they have no samples. Others are drawn "
           "every ten minutes.",
           hint="set a larger budget.memory, or choose fewer processes"),
    Reason("few_samples", Stage.AGENT,
           "The budget leaves too few samples: shares of a service are uncertain by 25 points or more since 3 windows.",
           hint="set a larger budget (budget.cpu, budget.memory) or longer windows.every, or choose fewer processes"),
    Reason("unattributed_time", Stage.AGENT,
           "In the last window more than 3 % of a service's processor time is missing: that of short processes whose "
           "rule needs what ended with them.",
           hint="choose their service by unit, cgroup, container, name, user or parent, not by exe, cmdline or env"),
    Reason("impossible_sum", Stage.AGENT,
           "A window of the last ten minutes has more processor time than the host's processors have.",
           hint="do not trust the sums of this window; please report it with the agent's log"),
    Reason("window_gap", Stage.AGENT,
           "In the last ten minutes, a second or more between two windows was in neither (gap_seconds).",
           hint="the agent or a recording was restarted; find out why if you did not do it"),
    Reason("reload_failed", Stage.AGENT, "The configuration was wrong at the last reload. The one before applies.",
           hint="pyprof agent --config FILE --check"),
)
# fmt: on


# fmt: off
REQUESTS = (
    Reason("bad_question", Stage.SERVER, "A parameter of the query is invalid.",
           hint="see docs/server.md, which lists all parameters"),
    Reason("bad_segment", Stage.SERVER, "The body is not a pprof file. The server stores nothing of it."),
    Reason("bad_symbols", Stage.SERVER, "The body is not a Breakpad symbol file of this build-id. The server "
        "does not store it."),
    Reason("too_many_symbols", Stage.SERVER, "The tenant's symbol files would have more bytes than limits.symbols.",
           hint="set a larger limits.symbols"),
    Reason("no_token", Stage.SERVER, "This server requires a token.", hint="send the header Authorization: Bearer "
           "TOKEN"),
    Reason("wrong_token", Stage.SERVER, "No tenant has this token.",
           hint="queries and the page need the tenant's read token (read_token_file of the server); agents need its "
           "write token (token_file of the sink)"),
    Reason("wrong_role", Stage.SERVER, "The token has the other role: one token writes, another one reads.",
           hint="use the tenant's write token for agents, its read token for queries"),
    Reason("no_such_page", Stage.SERVER, "The server has no such page."),
    Reason("nothing_there", Stage.SERVER, "No window has matching samples.", hint="choose a longer span, or fewer "
           "labels"),
    Reason("segment_known", Stage.SERVER, "The server already has this segment. It counts once."),
    Reason("body_too_slow", Stage.SERVER, "The body did not arrive within a minute. The server stores nothing of it.",
           hint="send smaller bodies: beyond 1 MiB, all senders together are limited to 4 MiB a second"),
    Reason("body_too_large", Stage.SERVER, "The body is longer than limits.body.", hint="set a larger limits.body"),
    Reason("wrong_name", Stage.SERVER, "The path is not that of the segment: DAY/SERVICE/END_NS-KEY.pb.gz."),
    Reason("too_old", Stage.SERVER, "The window ended before the retention's oldest day."),
    Reason("too_new", Stage.SERVER, "The window ends more than a day in the future: is the agent's clock right?",
           hint="run NTP on both hosts"),
    Reason("too_many_series", Stage.SERVER, "There are more sets of labels than the server accepts.",
           hint="use fewer labels in the agent's rules; a pod's name is a new label at each start"),
    Reason("question_too_dear", Stage.SERVER, "The query needs more time or memory than its limit.",
           hint="choose a shorter span or one service, or set a larger limits.question_time and "
           "limits.question_memory"),
    Reason("too_many_requests", Stage.SERVER,
           "The tenant sends more segments a second than limits.rate, or large ones faster than the server reads them.",
           hint="set a larger limits.rate; for large segments, wait"),
    Reason("starting", Stage.SERVER, "The server has started and has not checked its database yet.",
           hint="repeat the request in a few seconds"),
    Reason("store_failed", Stage.SERVER, "The database refused the request, or is not reachable.",
           hint="read the server's log, which has the database's message"),
    Reason("store_rebuilding", Stage.SERVER,
           "The database was damaged and is filled again from the files. Queries lack windows.",
           hint="wait for `files indexed` in the server's log"),
    Reason("disk_full", Stage.SERVER, "The server's disk is full. The segment is not stored; older ones stay.",
           hint="free space on the server's disk, or set a smaller retention.max_bytes"),
)

FILES_MISSING = Reason(
    "files_missing", Stage.SERVER,
    "Files of windows are gone, which the database still has: after a restore, or because something removed them.",
    hint="find out what removed them; pyprof agent resend brings them back, pyprof server --rebuild forgets them")
"""Condition of the server that is no reason for a refusal."""

ASKS = (
    Reason("ask_not_allowed", Stage.AGENT,
           "Only root, the agent's user and the members of record.group may request recordings.",
           hint="set record.group in the agent's configuration, and restart the agent"),
    Reason("ask_malformed", Stage.AGENT, "The request is invalid, too long or arrived too slowly."),
    Reason("ask_too_much", Stage.AGENT, "The recording would be too long, or have too many samples.",
           hint="use a shorter -d, or a lower -r"),
    Reason("ask_no_service", Stage.AGENT, "No process of this service is being recorded.",
           hint="run pyprof agent status, which lists the services"),
    Reason("ask_busy", Stage.AGENT, "There are too many requests at once.", hint="repeat the request later"),
    Reason("ask_agent_ends", Stage.AGENT, "The agent is shutting down."),
    Reason("ask_failed", Stage.AGENT, "The requested recording failed; the text says why."),
)
"""Reasons why the agent refuses a request of `pyprof agent record`."""
# fmt: on
