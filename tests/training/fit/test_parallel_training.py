"""Two processes take the same steps as one process with the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_examples import ticket_rows, write_csv

from models.bundle import verify_bundle

ROOT = Path(__file__).parents[3]

# Prints, from process 0, the gradients of the first step and the weights after the run, as one JSON line.
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from models.network import Network
from models.tokenizer import Tokenizer, build_word_tokenizer
from training.fit import loop
from training.fit import distributed
from training.data.dataset import load_dataset
from training.recipe import load_recipe
from training.fit.trainer import encode, network_config

distributed.start()
recipe = load_recipe(sys.argv[1], epochs=2, batch_size=16, dropout=0.0, attention_dropout=0.0)
data = load_dataset(Path(sys.argv[2]))
tokenizer = Tokenizer(build_word_tokenizer(data.train.texts), recipe.max_tokens)
torch.manual_seed(0)
network = Network(network_config(recipe, tokenizer, data.teams))
first = []
plain = loop.distributed.all_reduce_gradients

def keep(parameters):
    parameters = list(parameters)
    plain(parameters)
    if not first:
        first.extend(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).tolist())

loop.distributed.all_reduce_gradients = keep
parts = [encode(part.texts, part.teams, tokenizer, data.teams) for part in (data.train, data.valid)]
out = Path(sys.argv[3])
history = loop.fit(network, *parts, recipe, out / "checkpoint.pt", "test")
if distributed.rank() == 0:
    weights = torch.cat([p.detach().flatten() for p in network.parameters()]).tolist()
    losses = [(e.loss, e.accuracy) for e in history]
    (out / "result.json").write_text(json.dumps({"gradients": first, "weights": weights, "epochs": losses}))
distributed.stop()
"""


def start(processes: int, folder: Path, *arguments: str) -> subprocess.Popen:
    """`arguments` are those of the command that torchrun starts; it finds a free port by itself."""
    folder.mkdir()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [sys.executable, *(launcher if processes > 1 else []), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one, two and three processes end with, on 7 batches, the last of which has 2 tickets."""
    folder = tmp_path_factory.mktemp("parallel")
    data = write_csv(folder / "t.csv", ticket_rows(109))
    (folder / "script.py").write_text(SCRIPT)
    counts = (1, 2, 3)
    arguments = [str(folder / "script.py"), "baseline", str(data)]
    for process in [start(n, folder / str(n), *arguments, str(folder / str(n))) for n in counts]:
        finish(process)
    return {n: json.loads((folder / str(n) / "result.json").read_text()) for n in counts}


@pytest.mark.parametrize("processes", [2, 3])
def test_the_first_step_has_the_gradients_of_the_joint_batch(results, processes):
    one, several = (torch.tensor(results[count]["gradients"]) for count in (1, processes))
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(several, one, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("processes", [2, 3])
def test_the_run_ends_with_the_same_weights_and_figures(results, processes):
    one, several = results[1], results[processes]
    torch.testing.assert_close(
        torch.tensor(several["weights"]), torch.tensor(one["weights"]), atol=2e-4, rtol=1e-3
    )
    torch.testing.assert_close(
        torch.tensor(several["epochs"]), torch.tensor(one["epochs"]), atol=1e-4, rtol=1e-4
    )


@pytest.mark.slow
def test_the_command_writes_one_bundle(tmp_path):
    data = write_csv(tmp_path / "t.csv", ticket_rows(120))
    arguments = ["--data", str(data), "--out", str(tmp_path / "o" / "bundle"), "--recipe", "baseline"]
    finish(start(2, tmp_path / "o", "-m", "training.train", *arguments, "--epochs", "2", "--report", "none"))
    assert verify_bundle(tmp_path / "o" / "bundle").metrics["tickets"] == 24  # a fifth of 120
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["bundle"]
