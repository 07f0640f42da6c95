"""The models of the embedded profile, prepared on the machine itself without any model hub.

`smollm2-v41` is a toy model on the real contract: a real, small language model that speaks DeepSeek-V4.1's chat format.
`canary` has random weights and serves tests of shapes. `v41-rank` is V4.1's architecture at the size of one TP4 rank, without
weights, for measuring on GPUs. Their token ids are their own, not those of DeepSeek-V4.1.
"""

from dsv41_serving.embedded.description import load_description
from dsv41_serving.embedded.manifest import Manifest
from dsv41_serving.embedded.prepare import ModelName, PreparedModel, prepare_model
from dsv41_serving.embedded.verify import Problem, verify_model

__all__ = ["Manifest", "ModelName", "PreparedModel", "Problem", "load_description", "prepare_model", "verify_model"]
