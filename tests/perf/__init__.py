"""Tests of the perf_event collector: records, address spaces and whole recordings."""
