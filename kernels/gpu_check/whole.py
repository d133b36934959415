"""The stages that use the kernel where it serves: an epoch of training, and the shipped bundle."""

import contextlib
import importlib
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.gpu_check.correct import ROOT, Visit
from kernels.gpu_check.record import Failed, NotRun

FIRST_LOSS = 1e-5  # relative: rounding alone
MEAN_LOSS = 1e-2  # relative, over an epoch: Adam makes more and more of a rounding


def _load(name: str) -> Any:
    """A module that may be missing here, by name: kernels is the ground floor and imports no other room."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotRun(f"{name} cannot be imported: {error}") from error


# ---- one epoch


def epoch(visit: Visit) -> None:
    """One epoch of the router's own network on random tickets, on the CPU and here; both losses and times."""
    network = _load("models.network")
    tickets, batch, n = (24, 8, 12) if visit.place.dry else (8192, 128, 120)
    config = network.NetworkConfig(
        vocab_size=3000, teams=5, dropout=0.0, attention_dropout=0.0, positions="relative"
    )
    g = torch.Generator().manual_seed(visit.seed)
    ids = torch.randint(2, 3000, (tickets, n), generator=g)
    lengths = torch.randint(n // 3, n + 1, (tickets, 1), generator=g)
    ids = ids.masked_fill(torch.arange(n) >= lengths, 0)
    teams = ids[:, 0] % 5  # something to learn
    torch.manual_seed(visit.seed)
    start = network.Network(config).state_dict()

    losses: dict[str, list[float]] = {}
    for name, device, attending in (
        ("cpu", torch.device("cpu"), contextlib.nullcontext()),
        ("here", visit.place.device, visit.place.attending()),
    ):
        model = network.Network(config)
        model.load_state_dict(start)
        with attending:
            losses[name], seconds = train(model.to(device), ids.to(device), teams.to(device), batch)
        visit.record.figure(
            f"epoch of {tickets} tickets, {name}",
            device=str(device),
            seconds=seconds,
            first_loss=losses[name][0],
            mean_loss=sum(losses[name]) / len(losses[name]),
            last_loss=losses[name][-1],
        )
    compare_losses(losses["cpu"], losses["here"])


def train(model: nn.Module, ids: Tensor, teams: Tensor, batch: int) -> tuple[list[float], float]:
    """The loss of each step, and the seconds of the epoch, in which nothing is compiled any more."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(first: int) -> Tensor:
        return functional.cross_entropy(model(ids[first : first + batch]), teams[first : first + batch])

    torch.autograd.grad(loss_of(0), list(model.parameters()), allow_unused=True)  # compiles what is needed
    start = time.perf_counter()
    losses = []
    for first in range(0, len(ids), batch):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(first)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    values: list[float] = torch.stack(losses).tolist()  # waits for the device
    return values, time.perf_counter() - start


def compare_losses(cpu: list[float], here: list[float]) -> None:
    """Raise Failed where the losses differ by more than rounding explains."""
    first = abs(cpu[0] - here[0]) / abs(cpu[0])
    mean = abs(sum(cpu) - sum(here)) / abs(sum(cpu))
    if not (first <= FIRST_LOSS and mean <= MEAN_LOSS):
        raise Failed(
            f"losses differ: the first by {first:.2g} (at most {FIRST_LOSS}), the mean by {mean:.2g}"
        )


# ---- the bundle


def bundle(visit: Visit) -> None:
    """Answers and explanations of the shipped graph, by ONNX Runtime's CUDA provider and on the CPU."""
    ort = _load("onnxruntime")
    path = ROOT / "models" / "larkfield" / "model.onnx"
    if not path.exists():
        raise NotRun("models/larkfield/model.onnx is not here")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    cpu = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    if visit.place.dry:  # the same graph, run without the optimizer's fusions
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        other = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    else:
        other = _cuda_session(ort, path, options)
    for tickets, tokens in ((1, 8), (2, 20)) if visit.place.dry else ((1, 8), (1, 120), (64, 60), (512, 120)):
        compare_sessions(visit, cpu, other, tickets, tokens)


def _cuda_session(ort: Any, path: Any, options: Any) -> Any:
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise NotRun(f"ONNX Runtime {ort.__version__} has no CUDA provider: {ort.get_available_providers()}")
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # CUDA's libraries may lie in Python packages
    cuda = ("CUDAExecutionProvider", {"use_tf32": "0"})
    session = ort.InferenceSession(path, options, providers=[cuda, "CPUExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise NotRun(f"ONNX Runtime could not load its CUDA provider: it uses {session.get_providers()}")
    return session


def compare_sessions(visit: Visit, cpu: Any, other: Any, tickets: int, tokens: int) -> None:
    """Logits, attention weights and token effects of random tickets; Failed where they differ."""
    g = torch.Generator().manual_seed(visit.seed)
    ids = torch.randint(2, 1000, (tickets, tokens), generator=g)
    ids[:, tokens // 2 :] *= torch.arange(tickets)[:, None] % 2 == 0  # every second ticket is shorter
    contrast = torch.linspace(1, -1, cpu.get_outputs()[0].shape[1])
    feeds = {
        "logits": {"input_ids": ids.numpy()},
        "attention": {"input_ids": ids.numpy(), "with_attention": torch.tensor(True).numpy()},
        "effects": {"input_ids": ids[:1].numpy(), "contrast": (contrast - contrast.mean())[None].numpy()},
    }
    given = {output.name for output in cpu.get_outputs()}
    found: dict[str, float] = {}
    for output, feed in feeds.items():
        if output not in given:
            continue
        a, b = (torch.from_numpy(session.run([output], feed)[0]) for session in (cpu, other))
        found[output] = (a - b).abs().max().item() / max(1.0, a.abs().max().item())
        if output == "logits":
            found["other_answers"] = float((a.argmax(-1) != b.argmax(-1)).sum())
    start = time.perf_counter()
    other.run(["logits"], feeds["logits"])
    visit.record.figure(f"{tickets} x {tokens}", **found, seconds=time.perf_counter() - start)
    wrong = {name: error for name, error in found.items() if not error <= 1e-4}
    if wrong:
        raise Failed(f"{tickets} tickets of {tokens} tokens: {wrong}")
