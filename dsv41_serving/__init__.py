"""Serve DeepSeek-V4.1-Flash with SGLang, split into a prefill and a decode group.

The line that everything walks: `spec` (what the operator wrote) and `facts` (what the machine is) make a `plan`
(pure); the plan becomes files and processes (`run`); `check` proves that a conversation works.
"""
