"""Attention: the formula to read, the CUDA kernel, and the torch op that calls either."""
