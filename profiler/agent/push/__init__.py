"""Sending of segments to receivers. A SegmentSink sends one; a Pusher empties the queue of a sink.

bounded_answer  An HTTP response with a size limit
bucket       A bucket, by fsspec
folder       An existing folder
http_client  POST requests to an untrusted receiver
sink_types   Each type of sink: the settings in its [[push]], and its construction
messages     Bodies of requests and responses as protocol buffers
otlp         OpenTelemetry's profiles
responses    Verdicts by the responses of receivers
parca        Parca
progress     Progress of a segment that is sent in several requests
pusher       The queue of one sink
pushers      All sinks of the agent
pyroscope    Pyroscope
receiver_clock  The difference between this machine's clock and a receiver's
rpc          One gRPC call
secrets      Tokens and passwords, from files only
series       Conversion of a segment for receivers of pprof
server       pyprof's own server
sink         The interface of a sink
"""
