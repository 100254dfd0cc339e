"""Reasons why the server refuses a request, or the agent a requested recording.

Their names appear in responses and metrics.
"""

from __future__ import annotations

from pyprof.model.reason import Reason, Stage

# fmt: off
REQUESTS = (
    Reason("bad_question", Stage.SERVER, "A parameter of the query is invalid.",
           retry="docs/server.md lists all parameters"),
    Reason("bad_segment", Stage.SERVER, "The body is not a pprof file. The server stores nothing of it."),
    Reason("bad_symbols", Stage.SERVER, "The body is not a Breakpad symbol file of this build-id. The server "
        "does not store it."),
    Reason("too_many_symbols", Stage.SERVER, "The tenant's symbol files would have more bytes than limits.symbols.",
           retry="a larger limits.symbols"),
    Reason("no_token", Stage.SERVER, "This server requires a token.", retry="Authorization: Bearer TOKEN"),
    Reason("wrong_token", Stage.SERVER, "No tenant has this token.",
           retry="the tenant's token: of an agent, the first line of its sink's token_file"),
    Reason("wrong_role", Stage.SERVER, "The token has the other role: one token writes, another one reads.",
           retry="the tenant's write token for agents, its read token for queries"),
    Reason("no_such_page", Stage.SERVER, "The server has no such page."),
    Reason("nothing_there", Stage.SERVER, "No window has matching samples.", retry="a longer span, or fewer labels"),
    Reason("segment_known", Stage.SERVER, "The server already has this segment. It counts once."),
    Reason("body_too_slow", Stage.SERVER, "The body did not arrive within a minute. The server stores nothing of it.",
           retry="smaller bodies: beyond 1 MiB, all senders together are limited to 4 MiB a second"),
    Reason("body_too_large", Stage.SERVER, "The body is longer than limits.body.", retry="a larger limits.body"),
    Reason("wrong_name", Stage.SERVER, "The path is not a segment's: DAY/SERVICE/END_NS-KEY.pb.gz."),
    Reason("too_old", Stage.SERVER, "The window ended before the retention's oldest day."),
    Reason("too_new", Stage.SERVER, "The window ends more than a day in the future: is the agent's clock right?",
           retry="NTP on both hosts"),
    Reason("too_many_series", Stage.SERVER, "There are more sets of labels than the server accepts.",
           retry="fewer labels in the agent's rules; a pod's name is a new label at each start"),
    Reason("question_too_dear", Stage.SERVER, "The query needs more time or memory than its limit.",
           retry="a shorter span, one service, or a larger limits.question_time and limits.question_memory"),
    Reason("too_many_requests", Stage.SERVER,
           "The tenant sends more segments a second than limits.rate, or large ones faster than the server reads them.",
           retry="a larger limits.rate; for large segments, wait"),
    Reason("store_failed", Stage.SERVER, "The database refused the request, or is not reachable.",
           retry="the server's log, which has the database's message"),
    Reason("disk_full", Stage.SERVER, "The server's disk is full. The segment is not stored; older ones stay.",
           retry="free space on the server's disk, or a smaller retention.max_bytes"),
)

ASKS = (
    Reason("ask_not_allowed", Stage.AGENT,
           "Only root, the agent's user and the members of record.group may request recordings.",
           retry="record.group in the agent's configuration, and a restart"),
    Reason("ask_malformed", Stage.AGENT, "The request is invalid, too long or arrived too slowly."),
    Reason("ask_too_much", Stage.AGENT, "The recording would be too long, or have too many samples.",
           retry="a shorter -d, or a lower -r"),
    Reason("ask_no_service", Stage.AGENT, "No process of this service is being recorded.",
           retry="pyprof agent status lists the services"),
    Reason("ask_busy", Stage.AGENT, "There are too many requests at once.", retry="repeat the request later"),
    Reason("ask_agent_ends", Stage.AGENT, "The agent is shutting down."),
    Reason("ask_failed", Stage.AGENT, "The requested recording failed; the text says why."),
)
"""Reasons for refusals of `pyprof agent record`."""
# fmt: on
