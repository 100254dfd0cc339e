"""The agent: it records what rules choose, for as long as the machine runs, and stores windows in a spool.

agent                            The agent as a whole: rules, collectors, windows, the spool
config                           The agent's configuration: TOML in, checked values out
control_socket                   The agent's control socket: its protocol, its server with limits for clients, and its
                                 client
ended_process_cpu_time           Processor time of processes that lived too short for a look at /proc
health                           The agent's health, for /healthz, /readyz and /metrics: its own cost, and the
                                 conditions that impair it
http_endpoints                   Pages on 127.0.0.1
last_minutes                     The windows of the last minutes as they were recorded
metrics                          Metrics of a running agent in the OpenMetrics text format
overhead_budget                  Enforcement of the agent's budget
process_group_recording          One collector of the agent: the recording of the processes that are sampled in the same
                                 way, and its windows
process_rules                    Rules: which processes are recorded, how, and what they are called
process_table                    The processes of the machine, and the rules' verdict about each
push_segment_to_pprof            Conversion of a segment for receivers of pprof
push_sink_queues                 Queues of sinks: one thread for each sink sends its oldest segment first
push_sink_types                  The types of sinks: their settings and construction; sinks that store segments
                                 unchanged: a folder, a bucket, pyprof's own server
push_sinks_otlp_parca_pyroscope  Sinks that convert segments for receivers of other projects: OpenTelemetry, Parca and
                                 Pyroscope
requested_recordings             Recordings on request: a service, for some seconds, at a separate rate
sampling_effort_controller       Controller of the agent's effort
scale_to_cpu_time                Processor time of each process by the kernel's clocks, and the scaling of a window's
                                 samples to it
spool                            The spool: a directory of segments that are never changed, and the choice of those to
                                 drop
spool_query                      Query of a spool for a span of time: its segments as one profile, also divided by a
                                 label
spool_status                     The state of a spool from its files alone, and the queues of its sinks
windows                          Windows of the agent: when they end, their checkpoints, and their division into
                                 segments by service
"""
