"""Tests with saved input of the unwinder: the resulting outputs must not change by accident."""
