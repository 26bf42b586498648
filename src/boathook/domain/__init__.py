"""The domain: plain Python without I/O, clock or third-party imports."""
