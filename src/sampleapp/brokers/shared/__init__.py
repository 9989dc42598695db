"""What every broker needs, once: its condition, waiting, backing off, and calling observers."""
