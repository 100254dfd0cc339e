-- All tables of the store. A line `-- N text` begins migration N. {text}, {delta} and {zstd} are a dialect's own words for a
-- text that recurs and for how a column is compressed; {ttl} drops what is older than the retention; {if_absent} is
-- empty for servers that do not know it (HttpEngine.run); {on_cluster} and {all} are empty on one server. Of each table a cluster has a second one, NAME_all ({all}), for the rows of all servers.

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

-- Frames, outermost first (frame_text_codec.py). A stack may stand here more than once: any row of it will do.
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

-- 3 rows by hours beside those by windows (hours.py, cover.py)

-- One row a stack, a label set and a segment. hour: since 1970, in which the window ended.
-- sharding: window_samples by stack
DROP TABLE IF EXISTS window_samples {on_cluster};
CREATE TABLE IF NOT EXISTS window_samples {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    hour UInt64 {delta},
    end_ns Int64 {delta},
    batch UInt64 {zstd},
    series UInt64 {zstd},
    stack UInt64 {zstd},
    stack2 UInt64 {zstd},
    value Int64 {zstd},
    count Int64 {zstd}
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, hour, service, stack, stack2, series, end_ns) {ttl};

-- How well the code of a file is named and unwound, of a segment, as builds had it.
-- sharding: window_builds by batch
DROP TABLE IF EXISTS window_builds {on_cluster};
CREATE TABLE IF NOT EXISTS window_builds {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    hour UInt64 {delta},
    end_ns Int64 {delta},
    batch UInt64 {zstd},
    path {text},
    build_id {text},
    amount Int64,
    unnamed Int64,
    cut Int64
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, hour, path, build_id, end_ns) {ttl};

-- The label sets of a segment, and what each cost.
-- sharding: window_series by batch
DROP TABLE IF EXISTS window_series {on_cluster};
CREATE TABLE IF NOT EXISTS window_series {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    end_ns Int64 {delta},
    batch UInt64 {zstd},
    series UInt64,
    amount Int64
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, service, end_ns) {ttl};

-- Windows of one hour together: one row a stack and a label set. end_ns: of the last one that has it.
-- sharding: hour_samples by stack
CREATE TABLE IF NOT EXISTS hour_samples {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    end_ns Int64 {zstd},
    roll UInt64 {zstd},
    series UInt64 {zstd},
    stack UInt64 {zstd},
    stack2 UInt64 {zstd},
    value Int64 {zstd},
    count Int64 {zstd}
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, service, stack, stack2, series, roll) {ttl};

-- sharding: hour_builds by roll
CREATE TABLE IF NOT EXISTS hour_builds {on_cluster} (
    day Date,
    tenant {text},
    type {text},
    service {text},
    end_ns Int64 {zstd},
    roll UInt64 {zstd},
    path {text},
    build_id {text},
    amount Int64,
    unnamed Int64,
    cut Int64
) ENGINE = {engine} PARTITION BY day ORDER BY (tenant, type, path, build_id, roll) {ttl};

-- Whose rows by hours are whole: of a day's windows of that hour, those whose batch is not above upto and above that of
-- the hour's roll before. windows: how many these are. A roll without a row here counts for nobody.
-- sharding: rolls by roll
CREATE TABLE IF NOT EXISTS rolls {on_cluster} (
    day Date,
    hour UInt64,
    roll UInt64,
    upto UInt64,
    windows UInt64
) ENGINE = {engine} PARTITION BY day ORDER BY hour {ttl};

-- Days of which all windows are in rolls: those count for parts of an hour, too. windows: how many were listed when their
-- rows by windows were dropped; 0 while these are there.
-- sharding: rolled by windows
DROP TABLE IF EXISTS rolled {on_cluster};
CREATE TABLE IF NOT EXISTS rolled {on_cluster} (
    day Date,
    windows UInt64
) ENGINE = {engine} PARTITION BY day ORDER BY windows {ttl};

INSERT INTO window_samples{all} (day, tenant, type, service, hour, end_ns, batch, series, stack, stack2, value, count)
SELECT day, tenant, type, service, toUInt64(intDiv(end_ns - 1, 3600000000000)), end_ns, batch, series, stack, stack2,
    value, count
FROM samples{all} WHERE value != 0 OR count != 0;

INSERT INTO window_builds{all} (day, tenant, type, service, hour, end_ns, batch, path, build_id, amount, unnamed, cut)
SELECT day, tenant, type, service, toUInt64(intDiv(end_ns - 1, 3600000000000)), end_ns, batch, path, build_id,
    amount, unnamed, cut
FROM builds{all};

INSERT INTO window_series{all} (day, tenant, type, service, end_ns, batch, series, amount)
SELECT day, tenant, type, service, any(end_ns), batch, series, sum(value)
FROM samples{all} GROUP BY day, tenant, type, service, batch, series;

-- 4 tables that migration 3 has copied

DROP TABLE IF EXISTS samples_all {on_cluster};
DROP TABLE IF EXISTS samples {on_cluster};
DROP TABLE IF EXISTS builds_all {on_cluster};
DROP TABLE IF EXISTS builds {on_cluster};
DROP TABLE IF EXISTS samples_hours_all {on_cluster};
DROP TABLE IF EXISTS samples_hours {on_cluster};
DROP TABLE IF EXISTS builds_hours_all {on_cluster};
DROP TABLE IF EXISTS builds_hours {on_cluster};

-- 5 how much each sample stands for, so that intervals of shares stay right where rows are added up

-- squares: the sum over a row's samples of the squared value that one sample stands for (model/share_interval.py). The
-- samples of older rows are taken to stand for equal values.
ALTER TABLE window_samples {on_cluster} ADD COLUMN {if_absent} squares Float32
    DEFAULT if(count > 0, value / count * value, 0) {zstd};
ALTER TABLE window_samples{all} {on_cluster} ADD COLUMN {if_absent} squares Float32;
ALTER TABLE hour_samples {on_cluster} ADD COLUMN {if_absent} squares Float32
    DEFAULT if(count > 0, value / count * value, 0) {zstd};
ALTER TABLE hour_samples{all} {on_cluster} ADD COLUMN {if_absent} squares Float32;
