"""Starts sglang-router without the engine behind it: `python -m dsv41_serving.sglang_plugin.router ARGUMENTS`.

The launcher of sglang-router 0.3.2 imports all of SGLang for the tracing of its Python load balancer, which is not the
router, and does without when SGLang is absent. Hidden, it costs neither 5 s at start nor 0.6 GB while the router runs.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the router with the command line's arguments; they are those of `sglang_router.launch_router`."""
    sys.modules["sglang"] = None  # type: ignore[assignment]
    from sglang_router import launch_router  # noqa: PLC0415 - after the line above

    launch_router.main()


if __name__ == "__main__":
    main()
