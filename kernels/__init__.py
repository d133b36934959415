"""Attention: the formula, one readable CUDA file, its launcher and its PyTorch operator."""

from kernels.attention import attention, emulated
from kernels.launch import launches

__all__ = ["attention", "emulated", "launches"]
