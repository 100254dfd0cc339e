"""What a profile is written as."""
