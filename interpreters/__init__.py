"""Frames of interpreters: where a runtime keeps them, how they are read, and where they belong in a native stack."""
