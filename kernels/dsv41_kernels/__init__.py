"""Triton kernels for DeepSeek-V4.1 on SGLang, one directory per op, each with its reference and its measurements."""
