"""The database: its engines, tables, rollups, and uploaded symbol files.

clickhouse_engine         The SQL engines: ClickHouse in this process (chdb) or a ClickHouse server; migrations of their
                          tables
clickhouse_native_blocks  Blocks of rows in ClickHouse's Native format, and the conversion of segments to one block for
                          each table
database                  The database: insertions, deletions and queries
local_database            The database in a folder: it opens when there is room, and a damaged one is set aside
rollups                   Hourly rollups: one row for each stack, label set and hour, and the plan of a query that uses
                          them
symbol_files              Symbol files that were uploaded, as ROOT/TENANT/BUILD_ID.sym: they name code that the agent
                          could not name
"""
