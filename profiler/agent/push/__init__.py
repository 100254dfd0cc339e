"""Sending of segments to receivers. A SegmentSink sends one; a Pusher empties the queue of a sink.

bounded_response  An HTTP response with a size limit
bucket_sink       A bucket, by fsspec
directory_sink    An existing folder
grpc_call         One gRPC call
http_client       POST requests to an untrusted receiver
messages          Bodies of requests and responses as protocol buffers
otlp              OpenTelemetry's profiles
parca             Parca
pusher            The queue of one sink
pyprof_server     pyprof's own server
pyroscope         Pyroscope
receiver_clock    The difference between this machine's clock and a receiver's
responses         Verdicts by the responses of receivers
secrets           Tokens and passwords, from files only
segment_to_pprof  Conversion of a segment for receivers of pprof
send_progress     Progress of a segment that is sent in several requests
sink_interface    The interface of a sink
sink_set          All sinks of the agent
sink_types        Each type of sink: the settings in its [[push]], and its construction
"""
