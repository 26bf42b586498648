"""The domain: plain Python and msgspec's records, without I/O or clock."""
