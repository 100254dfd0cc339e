"""Saving the batches of a collector, and playing them again.

collector  The collector of a batch log: produces again what collectors/replay/log.py saved, in the same order
log        Saves what a collector produces, so that replay/collector.py can produce it again: batches, images, threads
"""
