"""Selection of candidate blocks and positions after a full scan."""
