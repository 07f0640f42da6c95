"""Kernels run under Triton's interpreter here. The variable must be set before Triton is imported for the first time."""

import os

os.environ["TRITON_INTERPRET"] = "1"
