"""Tests of attacks on pyprof by its targets. docs/security.md names the test of each attack."""
