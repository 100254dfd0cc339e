"""The agent: it records what rules choose, for as long as the machine runs, and stores windows in a spool.

agent               The agent as a whole: rules, collectors, windows, the spool
budget              Enforcement of the agent's budget
clock_scaling       Sums of a window by the kernel's clocks of its processes
config              The agent's configuration: TOML in, checked values out
config_file         A file of settings: TOML that only its owner may write, and errors with their lines
config_schema       Each setting of the agent's configuration
control_protocol    The protocol of the control socket
control_socket      The agent's control socket
ended_processes     Processor time of processes that lived too short for a look at /proc
governor            Controller of the agent's effort
group_recording     One collector of the agent
health              The agent's health, for /healthz, /readyz and /metrics
health_conditions   The conditions under which the agent does not do all of its work
http_page           Pages on 127.0.0.1
last_minutes        The windows of the last minutes as they were recorded
log_lines           Lines of the agent's log
metrics             Metrics of a running agent in the OpenMetrics text format
on_demand           Recordings on request
on_demand_response  Merge of the agent's response into one profile, by the client
own_resources       The agent's own processor time and memory
process_clocks      Processor time of each process between two moments
process_table       The processes of the machine, and the rules' verdict about each
profile_by_label    A profile by label
push/               Segments to receivers
rules               Rules: which processes are recorded, how, and what they are called
segment_names       Names of segments
sink_queues         Queues of a spool
spool               The spool: a directory of segments that are never changed
spool_inventory     The segments in a spool, and those to drop
spool_io            The file system calls that the spool makes
spool_query         Query of a spool for a span of time
spool_status        The agent's state, from its segments alone
systemd             The agent as a service of systemd: its unit, and notifications
time_parsing        Times as people write them
window_checkpoint   Checkpoints of an unfinished window
window_end_times    Ends of windows, and steps of the wall clock
window_split        Division of a window of all processes into segments
"""
