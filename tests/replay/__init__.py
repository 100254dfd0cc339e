"""Recordings that were saved below the unwinder: what is made of them must not change by accident."""
