"""Prove the hand-off before serving: real NIXL agents, KV-shaped memory, lanes told apart, the speed kept as a baseline."""
