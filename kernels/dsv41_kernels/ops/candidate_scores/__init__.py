"""Scores and selection within published candidate blocks."""
