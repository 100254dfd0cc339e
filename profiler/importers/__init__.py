"""Readers of other profilers' files. The files are untrusted input: bounded, checked, and refused with one sentence.

The input is the bytes of a file that the user named; the output is a Profile. What a format does not state remains
unknown: most formats have no times.

collapsed                 Collapsed stacks: `root;caller;leaf COUNT`
foreign_push              Profiles as other profilers push them
otlp                      OpenTelemetry's profiles signal as it is sent
perf_data                 A `perf.data` file, read through an installed perf
perf_script               The output of `perf script`
pprof                     pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not
pprof_extra_fields        The extra fields that `exporters/pprof.py` writes into a pprof file
pprof_frames              Frames, from its tables of mappings, functions and locations
pprof_samples             Rows of its samples, many at once
profile_builder           Builds a Profile from frames and stacks in any order
protobuf                  Fields of a protocol buffer's message
pyroscope_parca_requests  Requests of other projects' agents
registry                  The format of a file, by its content; pyprof's own recording is one of them
speedscope                speedscope's JSON (npm speedscope, dist/release/file-format-schema.json)
"""
