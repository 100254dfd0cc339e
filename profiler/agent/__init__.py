"""The agent: it records what rules choose, for as long as the machine runs, and stores windows in a spool.

agent       The agent as a whole: rules, collectors, windows, the spool
control_socket  The agent's control socket
control_result  Merge of the agent's response into one profile, by the client
control_protocol  The protocol of the control socket
budget      Enforcement of the agent's budget
clock       Ends of windows, and steps of the wall clock
config      The agent's configuration: TOML in, checked values out
config_file  A file of settings: TOML that only its owner may write, and errors with their lines
disk        The file system calls that the spool makes
exact_sums  Sums of a window by the kernel's clocks of its processes
governor    Controller of the agent's effort
groups      A profile by label
health      The agent's health, for /healthz and /metrics
http_page   Pages on 127.0.0.1
last_minutes  The windows of the last minutes as they were recorded
inventory   The segments in a spool, and those to drop
sampled_group  One collector of the agent
log         Lines of the agent's log
metrics     Metrics of a running agent in the OpenMetrics text format
time_parsing  Times as people write them
notify      Notifications for systemd
on_demand   Recordings on request
own_cpu     The agent's own processor time and memory
peers       The process at the other end of a local socket
paths       The default folder of the agent's spool
process_clocks  Processor time of each process between two moments
processes   The processes of the machine, and the rules' verdict about each
push/       Segments to receivers
queues      Queues of a spool
reading     Query of a spool for a span of time
rules       Rules: which processes are recorded, how, and what they are called
segments    Names of segments
selecting   The processes of one recording, as the collector asks for them
settings    Each setting of the agent's configuration
window_checkpoint  Checkpoints of an unfinished window
splitting   Division of a window of all processes into segments
spool       The spool: a directory of segments that are never changed
status      The agent's state, from its segments alone
unit        The systemd unit of the agent
"""
