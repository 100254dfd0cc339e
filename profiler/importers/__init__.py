"""Files of other profilers as Profiles. They are foreign input: bounded, checked, and refused with one sentence.

In: bytes of a file that the user named. Out: a Profile. What a format does not say is not known: most have no time.

builder     From frames and stacks in any order to a Profile
collapsed   Collapsed stacks: `root;caller;leaf COUNT`
evidence    What `exporters/evidence.py` adds to a pprof file
otlp        OpenTelemetry's profiles signal as it is sent
perf_data   A `perf.data` file, through perf itself where it is installed
perf_script  What `perf script` prints
pprof       pprof's profile.proto (github google/pprof, proto/profile.proto), gzipped or not
pprof_frames   Frames, from its tables of mappings, functions and locations
pprof_samples  Rows of its samples, many at once
protobuf    Fields of a protocol buffer's message
pushed      Profiles as other profilers push them
pushes      What agents of other projects send
registry    Which format a file has, by its content; a recording of ours is one of them
speedscope  speedscope's JSON (npm speedscope, dist/release/file-format-schema.json), sampled and evented profiles
"""
