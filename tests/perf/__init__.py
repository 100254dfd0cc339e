"""The perf_event collector: records, spaces, whole recordings."""
