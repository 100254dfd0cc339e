"""Programs to record, and the recordings of them."""
