"""Index scores of a full scan on FP4 keys."""
