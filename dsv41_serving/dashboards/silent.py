"""Queries that have no answer on a node that is well, and why. The live test holds the list in both directions."""

from __future__ import annotations

from typing import Literal

Reason = Literal["gpu", "fault", "numa", "packed"]
REASONS: dict[Reason, str] = {
    "gpu": "needs an NVIDIA driver",
    "fault": "has data only while something is wrong",
    "numa": "needs engines bound to NUMA nodes, which the embedded profile does not do",
    "packed": "has data only where hand-offs are packed, which every profile leaves off",
}

# (board, panel, legend): reason. Only the embedded stack, without GPU and without faults, is this silent.
SILENT: dict[tuple[str, str, str], Reason] = {
    ("dsv41-main", "Bandwidth and tensor cores", "{{service}} memory bandwidth"): "gpu",
    ("dsv41-main", "Bandwidth and tensor cores", "{{service}} tensor cores"): "gpu",
    ("dsv41-main", "Blocks of a hand-off", "not packed: {{reason}}/s"): "packed",
    ("dsv41-main", "Blocks of a hand-off", "slots in use"): "packed",
    ("dsv41-main", "Errors, from NIXL", "{{service}} {{status}}/s"): "fault",
    ("dsv41-node", "GPUs now", "{{gpu}}"): "gpu",
    ("dsv41-node", "Utilisation", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "GPU memory", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "Power", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "Temperature", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "Clocks", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "NVLink", "GPU {{gpu}} {{direction}}"): "gpu",
    ("dsv41-node", "PCIe", "GPU {{gpu}} {{direction}}"): "gpu",
    ("dsv41-node", "Memory bandwidth", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "Tensor cores", "GPU {{gpu}}"): "gpu",
    ("dsv41-node", "PCIe replays", "GPU {{gpu}} per second"): "gpu",
    ("dsv41-node", "ECC errors and remapped rows", "GPU {{gpu}}: {{kind}} in 1 h"): "gpu",
    ("dsv41-node", "ECC errors and remapped rows", "GPU {{gpu}}: rows, {{cause}}"): "gpu",
    ("dsv41-node", "ECC errors and remapped rows", "GPU {{gpu}}: remap pending"): "fault",
    ("dsv41-node", "ECC errors and remapped rows", "GPU {{gpu}}: remap FAILED"): "fault",
    ("dsv41-node", "Throttled", "GPU {{gpu}}: {{reason}}"): "fault",
    ("dsv41-node", "Xid errors", "GPU {{gpu}}: Xid {{xid}}"): "fault",
    ("dsv41-node", "Memory on the wrong node", "{{service}}"): "numa",
}
