"""The embedded platform: SGLang's own engine on a machine without a GPU.

SGLang finds it through the entry point group `sglang.srt.platforms` and uses it only when `SGLANG_PLATFORM` is
`dsv41_embedded`; every other profile runs SGLang untouched. What it changes in SGLang and NIXL is one table,
`patches.PATCHES`; `drift` applies the table and stops the process when a row no longer fits the installed engine.
"""

PLATFORM = "dsv41_embedded"
