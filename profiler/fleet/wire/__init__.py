"""The protocol between agent and server: names of segments, requests and their responses.

push_client             HTTP and gRPC requests to an untrusted receiver, with credentials from files
push_response_verdicts  Verdicts by the responses of receivers: sent, refused for good, or later
segment_names           Names of segments: DAY/SERVICE/END_NS-UUID.pb.gz
"""
