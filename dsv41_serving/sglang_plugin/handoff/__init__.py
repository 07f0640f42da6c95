"""The KV hand-off inside the engines: where its time goes, and a packed way to carry it.

SGLang loads this through the entry point `dsv41_handoff` of the group `sglang.srt.plugins`, in prefill and decode engines that
hand over with NIXL; the table `[handoff]` of the node description reaches them as one environment variable.

    plugin      entry point: reads the table, applies the hooks, stops the process when SGLang is not the one they fit
    waterfall   the stages of every hand-off, as hooks that read clocks
    metrics     what is exported
    packed      the hooks of the packed hand-off: sender at prefill, receiver at decode
    staging     the staging buffer and the engine's pools; pools: the copies between them; ring: slots; wire: messages
"""
