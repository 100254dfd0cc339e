"""Attacks on pyprof by what it looks at; docs/security.md says which test is which attack."""
