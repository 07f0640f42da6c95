"""Tests on a real GPU with V4.1's shapes: `make test-gpu`, or `PYTHONPATH=kernels python -m pytest tests/gpu`."""

import os

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with the reason where there is no GPU, or where Triton has been told to interpret."""
    reason = None
    if not torch.cuda.is_available():
        reason = "needs an NVIDIA GPU; on a GPU host: PYTHONPATH=kernels python -m pytest tests/gpu"
    elif os.environ.get("TRITON_INTERPRET") == "1":
        reason = "TRITON_INTERPRET=1 is set; run tests/gpu in a process of its own: PYTHONPATH=kernels python -m pytest tests/gpu"
    for item in items:
        if "/tests/gpu/" in str(item.path):
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
