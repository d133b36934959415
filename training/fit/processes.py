"""Training over several processes, each on its share of every batch.

    torchrun --nproc-per-node 2 -m training.train --data tickets.csv --out runs/mine

Every process draws the same batches from the same seed and reads every second (third, …) ticket of each. The
shares' gradients are added up, so that each step is the one that a single process would take with the whole
batch. Started without torchrun, there is one process and nothing here does anything.
"""

import os
from collections.abc import Iterable

import numpy as np
import torch
from torch import distributed


def start() -> None:
    """Join the other processes that torchrun started."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        # Sums of tensors on the CPU go through gloo, those on GPUs through NCCL.
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def stop() -> None:
    """Leave, after all have come this far."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def processes() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def number() -> int:
    """Of this process; 0 is the one that writes and shows."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def local_rank() -> int:
    """Number of this process among those on its machine, as torchrun gives it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def share(rows: np.ndarray) -> np.ndarray:
    """Places in a batch that this process reads; none when there are more processes than tickets."""
    return np.arange(number(), len(rows), processes())


def add_up(values: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, in each of them."""
    if processes() > 1:
        distributed.all_reduce(values)
    return values


def add_up_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace each gradient by its sum over all processes, in one message; missing ones count as zero."""
    if processes() == 1:
        return
    held = list(parameters)
    for parameter in held:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    together = add_up(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, piece in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(piece.view_as(gradient))
