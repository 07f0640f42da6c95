"""Pages of many cache pools gathered into one contiguous block, for one write over the wire."""
