"""Compressors C1 and C2: pooling, RMSNorm, RoPE, FP4 rounding and the cache write in one launch."""
