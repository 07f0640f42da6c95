"""One contiguous block scattered into the pages of many cache pools, after one write over the wire."""
