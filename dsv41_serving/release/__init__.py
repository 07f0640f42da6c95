"""Releases of a node: what a bundle contains, how it is installed, which one is current, and the way back."""
