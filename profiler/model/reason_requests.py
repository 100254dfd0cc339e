"""Reasons why the server refuses a request, or the agent a requested recording.

Their names appear in responses and metrics.
"""

from __future__ import annotations

from pyprof.model.reason import Reason, Stage

# fmt: off
REQUESTS = (
    Reason("bad_question", Stage.SERVER, "The question has a word that cannot be.",
           retry="docs/server.md has all words"),
    Reason("bad_segment", Stage.SERVER, "The body is no pprof file; nothing of it is kept."),
    Reason("bad_symbols", Stage.SERVER, "The body is no Breakpad symbol file of this build-id; it is not kept."),
    Reason("too_many_symbols", Stage.SERVER, "The tenant's symbol files would have more bytes than limits.symbols.",
           retry="a larger limits.symbols"),
    Reason("no_token", Stage.SERVER, "This server asks for a token.", retry="Authorization: Bearer TOKEN"),
    Reason("wrong_token", Stage.SERVER, "No tenant has this token.",
           retry="the tenant's token: of an agent, the first line of its sink's token_file"),
    Reason("wrong_role", Stage.SERVER, "The token is for the other role: one writes, another reads.",
           retry="the tenant's write token for agents, its read token for queries"),
    Reason("no_such_page", Stage.SERVER, "The server has no such page."),
    Reason("nothing_there", Stage.SERVER, "No window has such samples.", retry="a longer span, or fewer labels"),
    Reason("segment_known", Stage.SERVER, "The segment is there already: it counts once."),
    Reason("body_too_slow", Stage.SERVER, "The body did not come within a minute; nothing of it is kept.",
           retry="smaller bodies: what is beyond 1 MiB comes at 4 MiB a second, for all senders together"),
    Reason("body_too_large", Stage.SERVER, "The body is longer than limits.body.", retry="a larger limits.body"),
    Reason("wrong_name", Stage.SERVER, "The path names no segment: DAY/SERVICE/END_NS-KEY.pb.gz."),
    Reason("too_old", Stage.SERVER, "The window ended before the retention's oldest day."),
    Reason("too_new", Stage.SERVER, "The window ends more than a day in the future: is the agent's clock right?",
           retry="NTP on both hosts"),
    Reason("too_many_series", Stage.SERVER, "There are more sets of labels than the server takes.",
           retry="fewer labels in the agent's rules; a pod's name is one for each start"),
    Reason("question_too_dear", Stage.SERVER, "The question costs more time or memory than one may.",
           retry="a shorter span, one service, or a larger limits.question_time and limits.question_memory"),
    Reason("too_many_requests", Stage.SERVER,
           "The tenant sends more a second than limits.rate, or what is much work faster than it is read.",
           retry="a larger limits.rate; of such bodies, a wait"),
    Reason("store_failed", Stage.SERVER, "The database refused, or is not there.",
           retry="the server's log, which has the database's words"),
    Reason("disk_full", Stage.SERVER, "The disk has no room: nothing of the segment is kept, what was there stays.",
           retry="room on the server's disk, or a smaller retention.max_bytes"),
)

ASKS = (
    Reason("ask_not_allowed", Stage.AGENT,
           "Only root, the agent's user and the members of record.group may ask.",
           retry="record.group in the agent's configuration, and a restart"),
    Reason("ask_malformed", Stage.AGENT, "What was sent is no request, is too long or came too slowly."),
    Reason("ask_too_much", Stage.AGENT, "The recording would be too long, or have too many samples.",
           retry="a shorter -d, or a lower -r"),
    Reason("ask_no_service", Stage.AGENT, "No process of this service is recorded at this moment.",
           retry="pyprof agent status has the services"),
    Reason("ask_busy", Stage.AGENT, "Too many ask at once.", retry="again, when they have what they asked for"),
    Reason("ask_agent_ends", Stage.AGENT, "The agent was told to end."),
    Reason("ask_failed", Stage.AGENT, "The recording that was asked for failed; the text says why."),
)
"""Reasons for refusals of `pyprof agent record`."""
# fmt: on
