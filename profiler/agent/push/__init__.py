"""Sending of segments to receivers. A SegmentSink sends one; a Pusher empties the queue of a sink.

grpc_call         One gRPC call
http_client       POST requests to an untrusted receiver, whose responses are limited in size
otlp              OpenTelemetry's profiles
parca             Parca
pusher            The queue of one sink
pyroscope         Pyroscope
responses         Verdicts by the responses of receivers, and the interface of a sink
secrets           Tokens and passwords, from files only
segment_sinks     Sinks that store segments unchanged: a folder, a bucket, pyprof's own server
segment_to_pprof  Conversion of a segment for receivers of pprof
sink_set          All sinks of the agent, and the clocks of their receivers
sink_types        Each type of sink: the settings in its [[push]], and its construction
"""
