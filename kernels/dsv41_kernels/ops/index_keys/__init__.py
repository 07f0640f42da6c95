"""Index keys projected from the compressed latents: product, RMSNorm, RoPE, FP4 and the cache write in one launch."""
