"""The loop learns, repeats itself exactly, and survives kill -9."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from training_examples import ticket_rows, write_csv

from models.bundle import load_bundle
from models.tokenizer import Tokenizer, build_word_tokenizer
from training.data.batches import TokenIds, batches_by_length
from training.data.dataset import load_dataset
from training.fit.loop import predict
from training.fit.progress import Progress
from training.fit.trainer import train
from training.recipe import load_recipe, recipe_names

ROOT = Path(__file__).parents[3]


# ---------------------------------------------------------------------------------------------- batches


def rows_of(lengths: list[int]) -> TokenIds:
    return TokenIds.from_rows(list(range(1, length + 1)) for length in lengths)


def test_rows_come_back_padded_with_zeros():
    batch = rows_of([3, 1, 5]).padded(np.array([1, 0]))
    assert batch.dtype == torch.int64
    assert batch.tolist() == [[1, 0, 0], [1, 2, 3]]


@pytest.mark.parametrize("generator", [None, np.random.default_rng(0)])
def test_every_row_is_in_exactly_one_batch(generator):
    lengths = np.random.default_rng(1).integers(1, 100, 5_000)
    batches = list(batches_by_length(lengths, 64, generator))
    assert sorted(np.concatenate(batches).tolist()) == list(range(5_000))
    assert max(map(len, batches)) == 64


def test_batches_are_shuffled_and_hold_little_padding():
    lengths = np.random.default_rng(1).integers(1, 100, 5_000)
    one, two = (list(batches_by_length(lengths, 64, np.random.default_rng(seed))) for seed in (0, 1))
    assert [batch.tolist() for batch in one] != [batch.tolist() for batch in two]
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in one)
    assert lengths.sum() / padded > 0.95


# --------------------------------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return load_dataset(write_csv(tmp_path_factory.mktemp("loop") / "t.csv", ticket_rows(240)))


def short_run(dataset, checkpoint: Path, name: str = "baseline", **changes):
    recipe = load_recipe(name, **{"epochs": 4, "learning_rate": 3e-3, "batch_size": 16, **changes})
    tokenizer = Tokenizer(build_word_tokenizer(dataset.train.texts), recipe.max_tokens)
    return train(dataset, recipe, tokenizer, checkpoint)


def weights(network) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_it_learns_what_can_be_learned(dataset, tmp_path):
    _, history = short_run(dataset, tmp_path / "c.pt")
    assert [epoch.number for epoch in history] == [1, 2, 3, 4]
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].valid_accuracy > 0.9


def test_same_seed_same_weights_other_seed_other_weights(dataset, tmp_path):
    one, two, other = (
        weights(short_run(dataset, tmp_path / f"{n}.pt", epochs=2, seed=seed)[0])
        for n, seed in enumerate((0, 0, 1))
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "changes"), [("baseline", {}), ("default", {"teacher": "words", "max_train_tokens": 0})]
)
def test_a_stopped_run_continues_to_the_same_weights(dataset, tmp_path, monkeypatch, name, changes):
    class Stopped(Exception):
        pass

    def stop_in_epoch_three(progress, step):
        if step.epoch == 3:
            raise Stopped

    whole, history = short_run(dataset, tmp_path / "whole.pt", name, **changes)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", stop_in_epoch_three)
        with pytest.raises(Stopped):
            short_run(dataset, tmp_path / "stopped.pt", name, **changes)
    network, resumed = short_run(dataset, tmp_path / "stopped.pt", name, **changes)
    assert torch.equal(weights(network), weights(whole))
    without_times = [[dataclasses.replace(epoch, seconds=0) for epoch in one] for one in (resumed, history)]
    assert without_times[0] == without_times[1]


def test_a_checkpoint_of_another_run_is_not_continued(dataset, tmp_path, capsys):
    short_run(dataset, tmp_path / "c.pt", epochs=1, seed=1)
    fresh = weights(short_run(dataset, tmp_path / "fresh.pt", epochs=1)[0])
    capsys.readouterr()
    assert torch.equal(weights(short_run(dataset, tmp_path / "c.pt", epochs=1)[0]), fresh)
    assert "continuing" not in capsys.readouterr().out


def test_a_checkpoint_runs_no_pickled_code(dataset, tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"identity": Payload()}, tmp_path / "c.pt")
    with pytest.raises(ValueError, match=r"c\.pt.*delete it"):
        short_run(dataset, tmp_path / "c.pt", epochs=1)
    assert not (tmp_path / "ran").exists()


def test_predictions_keep_the_order_of_the_tickets(dataset, tmp_path):
    network, _ = short_run(dataset, tmp_path / "c.pt", epochs=1)
    tokens = rows_of([5, 1, 9, 2])
    together = predict(network, tokens)
    for row in range(4):
        alone = predict(network, rows_of([[5, 1, 9, 2][row]]))
        torch.testing.assert_close(together[row], alone[0])


# ------------------------------------------------------------------------------------------------ kill


def start(data: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "training.train", "--data", str(data), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--recipe", "baseline", "--epochs", "6", "--name", "killed", "--report", "none"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_killed_and_started_again_it_ends_with_the_same_bundle(tmp_path):
    data = write_csv(tmp_path / "t.csv", ticket_rows(400))
    process = start(data, tmp_path / "killed")
    checkpoint = tmp_path / ".killed.training" / "checkpoint.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()

    again = start(data, tmp_path / "killed")
    assert "continuing after epoch" in again.communicate(timeout=300)[0]
    whole = start(data, tmp_path / "whole")
    assert "continuing" not in whole.communicate(timeout=300)[0]
    assert (tmp_path / "killed" / "model.onnx").read_bytes() == (
        tmp_path / "whole" / "model.onnx"
    ).read_bytes()
    killed, undisturbed = (load_bundle(tmp_path / name).config for name in ("killed", "whole"))
    assert killed.model_copy(update={"sha256": {}, "digest": ""}) == undisturbed.model_copy(
        update={"sha256": {}, "digest": ""}
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "t.csv", "whole"]


# --------------------------------------------------------------------------------------------- recipes


def test_both_recipes_load_and_mistakes_are_named(tmp_path):
    assert {"baseline", "default"} <= set(recipe_names())
    for name in recipe_names():
        assert load_recipe(name).name == name
    with pytest.raises(ValueError, match="no recipe 'nonsense'; use one of baseline, default"):
        load_recipe("nonsense")
    (tmp_path / "mine.toml").write_text("epoch = 3\n")
    with pytest.raises(ValueError, match=r"(?s)'epochs' is missing.*no setting 'epoch' .did you mean"):
        load_recipe(str(tmp_path / "mine.toml"))


def test_the_course_recipe_is_the_course():
    recipe = load_recipe("baseline")
    assert (recipe.d, recipe.heads, recipe.blocks, recipe.feed_forward) == (64, 4, 2, 256)
    assert (recipe.dropout, recipe.attention_dropout, recipe.max_tokens, recipe.min_count) == (
        0.1,
        0.1,
        120,
        2,
    )
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.seed) == (20, 64, 1e-3, 0)
