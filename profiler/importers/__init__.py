"""Readers of other profilers' files. The files are untrusted input: bounded, checked, and refused with one sentence.

The input is the bytes of a file that the user named; the output is a Profile. Facts that a format does not state remain
unknown: most formats have no times.

collapsed                 Collapsed stacks: `root;caller;leaf COUNT`
otlp                      OpenTelemetry's profiles signal as it is sent
perf                      The output of `perf script`, and a `perf.data` file that an installed perf reads
pprof                     pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not
pprof_tables              The tables of a pprof file: frames, samples, and the extra fields that exporters/pprof.py
                          writes
profile_builder           Builds a Profile from frames and stacks in any order, and divides one that was pushed
protobuf                  Fields of a protocol buffer's message
pyroscope_parca_requests  Requests of other projects' agents
registry                  The format of a file, by its content; pyprof's own recording is one of them
speedscope                speedscope's JSON (npm speedscope, dist/release/file-format-schema.json)
"""
