"""Sending of segments to receivers. A SegmentSink sends one; a Pusher empties the queue of a sink.

otlp_parca_pyroscope  Sinks that convert segments for receivers of other projects: OpenTelemetry, Parca and Pyroscope
segment_to_pprof      Conversion of a segment for receivers of pprof
sink_queues           Queues of sinks: one thread for each sink sends its oldest segment first
sink_types            The types of sinks: their settings and construction; sinks that store segments unchanged: a
                      folder, a bucket, pyprof's own server
"""
