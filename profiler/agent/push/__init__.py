"""Segments to receivers. A SegmentSink takes one; a Pusher empties the queue of a sink.

bounded_answer  An answer that is bounded as it comes
bucket       A bucket, by fsspec
folder       A folder that is there
http_client  A POST to a receiver, which is foreign
kinds        Each type of sink: what its [[push]] may say, and how it is made
messages     Bodies of requests and answers as protocol buffers
otlp         OpenTelemetry's profiles
outcomes     How a receiver answers
parca        Parca
progress     A segment that is sent in several requests
pusher       The queue of one sink
pushers      All sinks of the agent
pyroscope    Pyroscope
receiver_clock  How far our clock and a receiver's differ
rpc          One call of gRPC
secrets      Tokens and passwords, from files only
series       A segment as receivers of pprof want it
server       pyprof's own server
sink         What a sink is
"""
