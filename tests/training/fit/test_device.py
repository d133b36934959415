"""Training on a device: attention.cu itself, executed on the CPU, trains the network that PyTorch trains."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import emulator, launches
from kernels.mutate import MUTATIONS
from models.network import Network, NetworkConfig
from training.data.batches import TokenIds
from training.fit import device as devices
from training.fit import loop
from training.fit.device import CPU, DeviceError, LaunchCounter, choose_device
from training.fit.loop import Epoch, Examples, fit
from training.recipe import Recipe, load_recipe

TICKETS, TEAMS, VOCABULARY, BATCH, EPOCHS = 48, 3, 40, 12, 6  # 24 steps
WITHIN = 1e-5  # float32: sums of at most 64 products in another order

needs_emulator = pytest.mark.skipif(
    emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)"
)


def examples(seed: int) -> Examples:
    """Tickets of 3 to 11 tokens; a ticket's team decides which third of the vocabulary it draws from."""
    generator = np.random.default_rng(seed)
    teams = generator.integers(0, TEAMS, TICKETS)
    words = VOCABULARY // TEAMS
    rows = [
        (2 + team * words + generator.integers(0, words - 1, generator.integers(3, 12))).tolist()
        for team in teams
    ]
    return Examples(TokenIds.from_rows(rows), torch.from_numpy(teams))


def recipe(attention_dropout: float = 0.0, **changes: object) -> Recipe:
    changes = {"epochs": EPOCHS, "batch_size": BATCH, "attention_dropout": attention_dropout, **changes}
    return load_recipe("default", teacher="none", **changes)


def trained(
    device: devices.Device,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: Recipe,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> tuple[list[float], dict[str, torch.Tensor], list[Epoch]]:
    """The loss of each step, the weights at the end and the history of one training run."""
    torch.manual_seed(0)
    config = NetworkConfig(
        *(VOCABULARY, TEAMS),
        d=16,
        heads=2,
        feed_forward=32,
        attention_dropout=chosen.attention_dropout,
        positions="relative",
    )
    network = Network(config)
    losses: list[float] = []
    step = loop.Learner.step

    def recorded(self: loop.Learner, loss: torch.Tensor | None) -> None:
        assert loss is not None
        losses.append(loss.item())
        step(self, loss)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Learner, "step", recorded)
        history = fit(
            *(network, examples(1), examples(2), chosen, folder / "checkpoint.pt", "a run"),
            on_epoch=on_epoch,
            device=device,
        )
    return losses, network.state_dict(), history


def assert_same(weights: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Equal weights, but for the biases of keys.

    A bias adds the same number to all scores of a row, which softmax does not see. Its gradient is 0 but for
    rounding, and Adam makes steps of ordinary size of it.
    """
    for name, value in wanted.items():
        if not name.endswith("W_K.bias"):
            torch.testing.assert_close(weights[name], value, atol=WITHIN, rtol=0, msg=name)


@needs_emulator
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
def test_the_kernel_trains_the_network_that_pytorch_trains(attention_dropout, tmp_path, monkeypatch):
    chosen = recipe(attention_dropout)
    wanted, weights, _ = trained(CPU, tmp_path / "cpu", monkeypatch, chosen)
    counter = LaunchCounter()
    losses, same, _ = trained(choose_device("emulator"), tmp_path / "emulator", monkeypatch, chosen)
    steps = EPOCHS * TICKETS // BATCH
    assert len(losses) == steps >= 20
    assert losses == pytest.approx(wanted, abs=WITHIN)
    assert_same(same, weights)
    forward, backward = counter.counts()
    # Two blocks; an epoch ends with one batch of validation tickets, which has no backward pass.
    assert forward == 2 * (steps + EPOCHS)
    assert backward >= 2 * steps
    assert losses[-1] < losses[0] - 0.2  # it learns; smoothed labels keep the loss from 0


@needs_emulator
@pytest.mark.parametrize(
    "what", ["add the mask of another head", "backward_kv: forget the rows' mean gradient"]
)
def test_a_broken_kernel_trains_another_network(what, tmp_path, monkeypatch):
    """A break of the forward kernel and one of the backward kernel, as `kernels.mutate` makes them."""
    mutation = next(each for each in MUTATIONS if each.what == what)
    broken = tmp_path / "broken.cu"
    broken.write_text(mutation.apply(emulator.KERNEL_SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    real = devices.emulated
    monkeypatch.setattr(devices, "emulated", lambda: real(source=broken))
    wanted, _, _ = trained(CPU, tmp_path / "cpu", monkeypatch, recipe(epochs=2))
    losses, _, _ = trained(choose_device("emulator"), tmp_path / "broken", monkeypatch, recipe(epochs=2))
    assert losses != pytest.approx(wanted, abs=10 * WITHIN)


@needs_emulator
def test_a_run_continues_on_another_device(tmp_path, monkeypatch):
    """Stopped in the emulator after two epochs, continued on the CPU, and the other way round."""
    _, wanted, history = trained(CPU, tmp_path / "whole", monkeypatch, recipe(epochs=3))

    class Stopped(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise Stopped

    emulating = choose_device("emulator")
    for first, second in ((emulating, CPU), (CPU, emulating)):
        folder = tmp_path / str(first.emulates)
        with pytest.raises(Stopped):
            trained(first, folder, monkeypatch, recipe(epochs=3), on_epoch=stop)
        losses, weights, continued = trained(second, folder, monkeypatch, recipe(epochs=3))
        assert len(losses) == TICKETS // BATCH  # of the third epoch alone
        assert [epoch.number for epoch in continued] == [1, 2, 3]
        assert continued[-1].valid_loss == pytest.approx(history[-1].valid_loss, abs=WITHIN)
        assert_same(weights, wanted)


def test_on_the_cpu_attention_is_pytorchs(tmp_path, monkeypatch):
    before = launches()
    trained(CPU, tmp_path, monkeypatch, recipe(epochs=1))
    assert launches() == before


def test_an_unavailable_device_is_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(DeviceError, match="finds no GPU here; use --device cpu"):
        choose_device("cuda")
    monkeypatch.setattr(emulator, "compiler", lambda: None)
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler"):
        choose_device("emulator")
