"""Sparse MLA decode and verify over the sliding window and the selected entries."""
