"""Attention: the formula, one readable CUDA file, its launcher and its PyTorch operator."""

from kernels.attention import attention

__all__ = ["attention"]
