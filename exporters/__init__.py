"""What a profile is written as.

base          What an exporter is: a pure function from a profile to bytes
bounded       Profiles whose stacks are written out one by one, made small enough for that
changes_page  A comparison as a page: the flame graph of both recordings in one
chrome_trace  Chrome's trace as one JSON object (the Chromium project's document "Trace Event Format")
collapsed     Collapsed stacks: `root;...;leaf COUNT`, one line a stack, sorted by frames from the root
difference    A comparison of two profiles: a page, JSON, comma-separated values
evidence      What pprof's own fields have no place for: how each frame was found, and what the recording did
firefox       Firefox Profiler's JSON (github firefox-devtools/profiler, src/types/profile.ts), gzipped
firefox_tables  The tables that all threads of a Firefox profile share (version 60 of the processed format)
flame_tree    The profile as the flame graph's page wants it: functions instead of addresses, in flat columns
flamegraph    One self-contained HTML page
names         How frames, threads and weights are named; the same in every format
notebook      A page within a notebook: a frame of its own, which can do nothing to the notebook
otlp          OpenTelemetry's profiles signal as a file: ProfilesData of opentelemetry-proto 1.10
output_file   How an output comes to its place
page_samples  The samples of the page one by one, in compact columns of bytes
page_source   Source lines for the flame graph's page
pprof         pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped, ids sequential from 1
protobuf      The wire format of protocol buffers, as far as profile.proto needs it: varints and length-delimited fields
registry      The one list of output formats
save          A profile into a file, by name or suffix of a format
speedscope    speedscope's JSON (npm speedscope, dist/release/file-format-schema.json), type "sampled"
start_up      Which frames stand outside a program's or a thread's own first function: what starts it, always the same
timing        When samples begin and end, for formats that show them in order of time
utf8          Text and JSON that are UTF-8 whatever the target's names are
"""
