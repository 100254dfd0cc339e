"""Programs to record, and recordings of them."""
