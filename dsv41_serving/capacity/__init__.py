"""What fits: weights, KV pools, sessions, hand-off and load time, before anything is bought or started."""

from dsv41_serving.capacity.estimate import EngineCapacity, NodeCapacity, estimate_node
from dsv41_serving.capacity.shape import ModelShape, read_shape

__all__ = ["EngineCapacity", "ModelShape", "NodeCapacity", "estimate_node", "read_shape"]
