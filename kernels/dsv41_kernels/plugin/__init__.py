"""The SGLang plugin: puts ops into the running engine, op by op, `off`, `on` or `shadow`.

    [project.entry-points."sglang.srt.plugins"]
    dsv41_kernels = "dsv41_kernels.plugin:register"

    DSV41_KERNELS=compress=on,sparse_decode=shadow     all other ops keep their default

The engine calls `register` in every process. Only a scheduler runs the model, and there the work starts when the scheduler is
constructed, before the model is built: hook the targets through SGLang's own registry, verify that each was found with the
signature this release was written for, run every active op's gate on the GPU, print one table. Anything wrong ends the process
with one line: the engine swallows exceptions of plugins, so the plugin leaves by SystemExit.
"""

from __future__ import annotations

from dsv41_kernels.plugin.start import register

__all__ = ["register"]
