"""The formats in which a profile is written.

base                The interfaces of exporters, journals and sinks
begin_end_times     Begin and end of samples, for formats that show them in order of time
chrome_trace        Chrome's trace as one JSON object (the Chromium project's document "Trace Event Format")
collapsed           Collapsed stacks: `root;...;leaf COUNT`, one line a stack, sorted by frames from the root
comparison_file     A comparison of two profiles: a page, JSON, comma-separated values
depth_limit         Limits the depth of stacks for formats that write stacks one by one
display_names       Names of frames, threads and weights, equal in every format
firefox             Firefox Profiler's JSON (github firefox-devtools/profiler, src/types/profile.ts), gzipped
flamegraph          One self-contained HTML page, and a page in a sandboxed frame within a notebook
flamegraph_samples  The samples of the page one by one, in compact columns of bytes
flamegraph_tree     The data of the flame graph's page: a tree of functions, and source lines
otlp                OpenTelemetry's profiles signal as a file: ProfilesData of opentelemetry-proto 1.10
output_file         Atomic replacement of output files, and writing to streams that the user named
pprof               pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped, ids sequential from 1
protobuf_encoding   The wire format of protocol buffers, as far as profile.proto needs it
registry            The list of output formats, and the function that writes a profile into a file
speedscope          speedscope's JSON (npm speedscope, dist/release/file-format-schema.json), type "sampled"
"""
