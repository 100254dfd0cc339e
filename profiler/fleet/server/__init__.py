"""`pyprof server`: the windows of a fleet, stored as files, indexed in ClickHouse, queried over HTTP and in a page.

The input is segments from agents. The output is JSON, profiles in every format, and a page. The segment files are
authoritative: the server acknowledges a window when its file is durable. The database is an index of the files that can
be rebuilt.

authorization       Authorization: each tenant has tokens for reading and writing
config              The configuration: TOML in, checked values out
health_and_metrics  The server's health checks, and its metrics in the Prometheus text format
http_app            The HTTP interface: routes, limits, refusals
ingest/             The way of a segment into the server: it is received, stored as a file, converted to rows, and
                    indexed
query/              Queries over the database, and their responses as JSON or profiles
request_limits      Limits for requests: time and size of headers, rate of large bodies, number of sets of labels
start_and_shutdown  A server from its configuration: everything opened in order, and closed
store/              The database: its engines, tables, rollups, and uploaded symbol files
"""
