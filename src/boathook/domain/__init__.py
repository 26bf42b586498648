"""What the words mean: plain Python, no I/O, no clock, no third-party import."""
