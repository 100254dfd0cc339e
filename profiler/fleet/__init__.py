"""Continuous profiling of a fleet: the agent, the server, and their commands. The profiler never imports this package.

agent/             The agent: it records what rules choose, for as long as the machine runs, and stores windows in a
                   spool
cli/               Commands of the agent and the server. pyprof.cli.main loads them by name
file_system_calls  The file system calls of the spool and the server, one method for each
openmetrics        Metrics of the agent and the server in the OpenMetrics text format
server/            `pyprof server`: the windows of a fleet, stored as files, indexed in ClickHouse, shown in a page
systemd            The agent and the server as services of systemd: their units with rights and limits, and
                   notifications
toml_config_files  Configuration files of the agent and the server: reading, kinds of settings and their checks, times
wire/              The protocol between agent and server: names of segments, requests and their responses
"""
