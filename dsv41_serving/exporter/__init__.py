"""What nobody else exports: one page of metrics about this node, on loopback. `metrics` is the table of their names."""
