"""The values of pyprof: samples, walks, stacks, profiles. This package does no I/O and makes no policy decisions.

address_space                 Address spaces: the lines of /proc/PID/maps and the modules behind them
analysis/                     Functions on profiles: filters, merges, call trees, costs, idle waits, quality
arch/                         Supported architectures, as data
fleet_loss_reasons            Reasons of the agent and the server: unsent segments, refusals, conditions
integer_array_operations      Operations on columns of integers: distinct values, their numbers, masks, and sums
interpreter_frames            Interpreter frames of a sampled thread (Chain, Run, FunctionPlace), and the state of its
                              interpreter (SampleState)
interpreter_reader_protocols  The interface between collectors and interpreters: how the frames of an interpreter are
                              read from a process
jit_code_map                  Descriptions and names of code that no file contains, by address and time
loss_reason_table             The table of reasons: everything that is lost, skipped, truncated or refused
loss_reason_texts             Reasons by name: the meaning of counters, ends of stacks, refusals, problems of files
marker_frames                 Frames without code: markers of what is missing, kernel frames, and blocked system calls
prefix_tree                   Prefix trees of frames in columns, and a rewrite of all stacks of a tree
profile                       A finished profile: an immutable value with everything that an exporter needs
reason_type                   A reason why something is lost, skipped, truncated or refused, as a value
sample_batch                  Batches of samples in columns
stack_digest                  Digests that identify stacks by their content, in every file
stacks                        Stacks of a recording as nodes of a prefix tree of frames
summary                       Facts about a recording, as numbers: the summary panel and `--summary FILE`, and their
                              sums
thread_identity               Keys of threads and processes, and the labels that a user gives to them, `env=prod`
thread_stacks                 Stacks of threads at one moment, as values
untrusted_text                Untrusted text from targets, made harmless: secrets redacted, control characters escaped,
                              as UTF-8 and JSON
unwind_result                 The result of unwinding: frames, the source of each, and why each stack ended
"""
