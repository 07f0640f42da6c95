"""The object that SGLang asks about the device: a CPU without SGLang's compiled CPU kernels (those need libcuda)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from dsv41_serving.sglang_plugin import PLATFORM, drift

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


def activate() -> str | None:
    """Return the platform class when it was asked for by name, else None.

    SGLang activates every installed platform when `SGLANG_PLATFORM` is unset; a GPU node must not get this one.
    Exits with status 2 and one line when the installed SGLang or NIXL is another version than the patches are for.
    """
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM:
        return None
    with drift.stop_on_drift(PLATFORM):
        drift.check_versions()
    return f"{__name__}:EmbeddedPlatform"


class EmbeddedPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """CPU device operations, torch-native attention, no Triton, no graphs.

    SGLang calls `apply_server_args_defaults` once in the server process before it starts the workers, and
    `init_backend` in the scheduler process before the model, the KV pool and the NIXL agent exist. The first is
    where the patches go in, the second where they are proved to be in force.
    """

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """Return the one attention backend that needs no compiled kernels."""
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        """Return the key of the pure PyTorch implementations."""
        return "native"

    def apply_server_args_defaults(self, server_args: Any) -> None:  # noqa: ARG002 - SGLang's signature
        """Apply the patches; the arguments themselves come from the plan, none is defaulted here."""
        with drift.stop_on_drift(PLATFORM):
            drift.apply(_patches())

    def init_backend(self) -> None:
        """Prove the patches in the scheduler process; a process that was not forked applies them first."""
        patches = _patches()
        with drift.stop_on_drift(PLATFORM):
            drift.apply(patches)
            drift.verify(patches)
        logger.info("%s: %d patches in force (pid %d)", PLATFORM, len(patches), os.getpid())


def _patches() -> Sequence[drift.Patch]:
    # SGLang imports this module while its own packages are half imported; the table needs them whole.
    from dsv41_serving.sglang_plugin.patches import PATCHES  # noqa: PLC0415

    return PATCHES
