"""Prove the hand-off before serving: real NIXL agents, KV-shaped memory, lanes told apart, the speed kept as a baseline."""

from dsv41_serving.transport.judge import judge_pair
from dsv41_serving.transport.proof import Proof, read_proof, store_proof
from dsv41_serving.transport.prove import prove_transport

__all__ = ["Proof", "judge_pair", "prove_transport", "read_proof", "store_proof"]
