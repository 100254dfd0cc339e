"""`pyprof server`: the windows of a fleet, stored as files, indexed in ClickHouse, queried over HTTP and in a page.

The input is segments from agents. The output is JSON, profiles in every format, and a page. The segment files are
authoritative: the server acknowledges a window when its file is durable. The database is an index of the files that can
be rebuilt.

authorization       Authorization: tokens of tenants for reading and writing
request_limits      Limits for the requests of tenants: the rate of large bodies, and sets of labels
clickhouse_native   A block of rows in ClickHouse's Native format, column after column
config              The configuration: TOML in, checked values out
database            Inserts into the database and deletions
foreign_receivers   Conversion of other projects' pushes to segments
frame_cache         Cache of the frames in a tenant's segments
frame_text_codec    Conversion of a frame to a text of the database, and back
header_timeout      Limits for the time and size of a request's header
health              Checks whether the disk takes segments and the database answers
http_app            The HTTP interface: routes, limits, refusals
indexer             The thread that brings files into the database, and drops what is too old
ingest              Ingest of segments: stored durably, or refused
ingest_process      A separate process that reads large request bodies
lifecycle           A server from its configuration: everything opened in order, and closed
merged_profile      Conversion of rows of the database to a Profile
metrics             The server's own metrics, for /metrics
migrations          The tables and their migrations, from tables.sql, in the dialect of an engine
query_api           The responses of the query interface, as values for JSON
refusal_log         Log lines about refused requests, limited in rate
rollup_plan         Query plan: hourly rollups for whole hours, raw windows for the rest
rollups             Hourly rollups: creation, and replacement of the raw windows of old days
sample_selection    The selection of samples in a query's parameters
segment_files       The received segments, as files
segment_rows        Conversion of a segment to rows of the database
sql_engine          The SQL engines: ClickHouse in this process (chdb), or a ClickHouse server
sql_queries         Queries of the database
stack_digest_cache  Stacks that the server has read, by their digests and numbers
symbol_files        Symbol files that were uploaded, and names from them
systemd_unit        The systemd unit of the server
table_blocks        Conversion of segments to blocks of the tables, one for each table
"""
