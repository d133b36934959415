"""Data-parallel training: every process trains on its share of each batch.

    torchrun --nproc-per-node 2 -m training.train --data tickets.csv --out runs/mine

All ranks draw the same batches from the same seed; rank r takes tickets r, r + world size, … of each. The
gradients are summed over the ranks, so each step equals the step of one process on the whole batch. Without
torchrun there is one rank, and these functions change nothing.
"""

import os
from collections.abc import Iterable

import numpy as np
import torch
import torch.distributed as dist


def start() -> None:
    """Join the process group that torchrun set up; do nothing without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        # Sums of tensors on the CPU go through gloo, those on GPUs through NCCL.
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def stop() -> None:
    """Leave the process group after every rank has reached this call."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The rank of this process; rank 0 writes files and prints."""
    return dist.get_rank() if dist.is_initialized() else 0


def local_rank() -> int:
    """The rank of this process among those of its machine, as torchrun gives it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_rows(rows: np.ndarray) -> np.ndarray:
    """Positions in the batch `rows` that this rank trains on; may be empty."""
    return np.arange(rank(), len(rows), world_size())


def all_reduce(values: torch.Tensor) -> torch.Tensor:
    """Replace `values` by their sum over all ranks."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_reduce_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace each gradient by its sum over all ranks, in one call; a missing gradient counts as zero."""
    if world_size() == 1:
        return
    held = list(parameters)
    for parameter in held:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    summed = all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, piece in zip(gradients, summed.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(piece.view_as(gradient))
