"""The agent: it records what rules choose, for as long as the machine runs, and keeps windows in a spool.

agent       The agent as a whole: rules, collectors, windows, the spool
ask_socket  The agent's socket
asked_profile  What an asker makes of the agent's answer
asking      What is said on the agent's socket
budget      Keeping the agent's budget
clock       When windows end
config      The agent's configuration: TOML in, checked values out
config_file  A file of settings: TOML that nobody else may write, and errors with their lines
disk        The file system, as far as the spool needs it
exact_sums  Sums of a window by the kernel's clocks of its processes
governor    How much the agent does: a law of control
groups      A profile by label
health      Is the agent well? /healthz and /metrics
http_page   Pages on 127.0.0.1
last_minutes  The windows of the last minutes as they were recorded
inventory   Which segments a spool has, and which of them must go
sampled_group  One collector of the agent
log         Lines of the agent's log
metrics     Numbers of a running agent, as the text that Prometheus reads
moments     Times as people write them
notify      What systemd wants to hear
on_demand   A recording that somebody asks the agent for
own_cpu     What the agent costs
peers       Who is at the other end of a local socket
places      Where the agent's spool is, if nobody says
process_clocks  Processor time of each process between two moments
processes   Which processes there are, and what the rules say about each
push/       Segments to receivers
queues      Queues of a spool
reading     What a spool says about a span of time
rules       Rules: which processes are recorded, how, and what they are called
segments    Names of segments
selecting   The processes of one recording, as the collector asks for them
settings    Each setting of the agent's configuration
so_far      What there is of a window under way
splitting   From a window of all processes to segments
spool       The spool: a directory of segments that are never changed
status      How the agent does, from its segments alone
unit        The systemd unit of the agent
"""
