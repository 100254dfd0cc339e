-- All tables of the store. A line `-- N text` begins migration N. {text}, {delta} and {zstd} are a dialect's own words for a
-- text that recurs and for how a column is compressed; {ttl} drops what is older than the retention; {on_cluster} is
-- empty on one server. Of each table a cluster has a second one, NAME_all, which is {sharding}'s.

-- 1 windows, samples, stacks, series and builds

-- One row a segment that is wholly in the other tables. What has no row here is not there.
-- batch: the attempt that brought it; rows of an attempt that failed have another one, and count for nobody.
-- amount: the sum of its values. length_ns: time that it covers.
-- sharding: windows by batch
CREATE TABLE IF NOT EXISTS windows {on_cluster} (
    day Date,
    tenant {text},
    service {text},
    type {text},
    unit {text},
    host {text},
    segment String,
    batch UInt64,
    end_ns Int64 {delta},
    length_ns Int64,
    amount Int64,
    samples Int64
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, service, end_ns) {ttl};

-- One row a stack, a label set and a segment. stack, stack2: the two halves of the stack's hash.
-- sharding: samples by stack
CREATE TABLE IF NOT EXISTS samples {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    end_ns Int64 {delta},
    batch UInt64 {zstd},
    series UInt64 {zstd},
    stack UInt64 {zstd},
    stack2 UInt64 {zstd},
    value Int64 {zstd},
    count Int64 {zstd}
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, service, stack, stack2, series, end_ns) {ttl};

-- Frames, outermost first (frames.py). A stack may stand here more than once: any row of it will do.
-- sharding: stacks by stack
CREATE TABLE IF NOT EXISTS stacks {on_cluster} (
    day Date,
    tenant {text},
    stack UInt64,
    stack2 UInt64,
    frames Array({text}) {zstd}
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, stack, stack2) {ttl};

-- The labels that a number in samples stands for.
-- sharding: series by series
CREATE TABLE IF NOT EXISTS series {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    series UInt64,
    names Array({text}),
    label_values Array(String)
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, service, series) {ttl};

-- How well the code of a file is named and unwound, of a segment. unnamed: of the amount, in functions without names.
-- cut: in stacks that were cut off there.
-- sharding: builds by batch
CREATE TABLE IF NOT EXISTS builds {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    end_ns Int64 {delta},
    batch UInt64 {zstd},
    path {text},
    build_id {text},
    amount Int64,
    unnamed Int64,
    cut Int64
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, path, build_id, end_ns) {ttl};

-- 2 samples of old days by hours (hours.py)

-- Days whose samples and builds stand by hours. windows: how many were listed then.
-- sharding: rolled by windows
CREATE TABLE IF NOT EXISTS rolled {on_cluster} (
    day Date,
    windows UInt64
) ENGINE = {engine} PARTITION BY day ORDER BY windows {ttl};

-- A day's rows by hours, until they take the place of the others.
-- sharding: samples_hours by stack
CREATE TABLE IF NOT EXISTS samples_hours {on_cluster} AS samples;

-- sharding: builds_hours by batch
CREATE TABLE IF NOT EXISTS builds_hours {on_cluster} AS builds;
