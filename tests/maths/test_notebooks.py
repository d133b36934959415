"""The notebooks run from their first cell to their last, and their checks can fail."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = ["attention.ipynb", "attention_exercises.ipynb"]

# Right answers, by the line of the exercise cell that they replace.
RIGHT = {
    "query_of_arrival = ...": "query_of_arrival = [1, 0]",
    "weights_of_arrival = ...": "weights_of_arrival = [0.503, 0.248, 0.248]",
    "def my_attention(q, k, v, mask=None):\n    return ...": """
def my_attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores + mask
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = powers / powers.sum(-1, keepdim=True)
    return weights @ v, weights
""",
    "neighbours = ...": "neighbours = torch.zeros(3, 3)\nneighbours[0, 2] = neighbours[2, 0] = -math.inf",
    "blind_row = ...": 'blind_row = ([0, 0], "zeros")',
    "variance_and_divisor = ...": "variance_and_divisor = (144 * 16, 48)",
    "    return ...\n\n\nsteepest_p = ...": "    return p * (1 - p)\n\n\nsteepest_p = 0.5",
    '"d_k": ...': '"d_k": 16',
    '"Q after the split into heads": ...': '"Q after the split into heads": (3, 6, 50, 16)',
    '"weights": ...': '"weights": (3, 6, 50, 50)',
    '"scores in one ticket": ...': '"scores in one ticket": 15_000',
    '"bytes of the weights of one ticket in float32": ...': (
        '"bytes of the weights of one ticket in float32": 60_000'
    ),
    '"parameters": ...': '"parameters": 37_248',
    "accepted = ...": "accepted = torch.zeros(3, 3).masked_fill(~readable, -math.inf)",
    "growth_and_more_heads = ...": "growth_and_more_heads = (1024, False)",
}
WRONG = {
    "weights_of_arrival = ...": "weights_of_arrival = [0.6, 0.2, 0.2]",
    "def my_attention(q, k, v, mask=None):\n    return ...": """
def my_attention(q, k, v, mask=None):  # no scaling
    weights = torch.softmax(q @ k.transpose(-2, -1) + (0 if mask is None else mask), -1)
    return weights @ v, weights
""",
    "neighbours = ...": "neighbours = torch.ones(3, 3)",
    "blind_row = ...": 'blind_row = ([0, 0], "the mean of V")',
    "variance_and_divisor = ...": "variance_and_divisor = (144, 12)",
    "accepted = ...": "accepted = torch.zeros(3, 3).masked_fill(readable, -math.inf)",
    "growth_and_more_heads = ...": "growth_and_more_heads = (32, False)",
}


def read(name):
    return nbformat.read(DOCS / name, as_version=4)


def run(notebook):
    """All that the notebook prints in a kernel of its own; an error where a cell fails."""
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(DOCS)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def run_here(notebook, capsys):
    """The same without a kernel, which takes seconds to start."""
    names = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, cell.id, "exec"), names)
    return capsys.readouterr().out


def answered(answers):
    notebook = read("attention_exercises.ipynb")
    left = dict(answers)
    for cell in notebook.cells:
        for question in [question for question in left if question in cell.source]:
            cell.source = cell.source.replace(question, left.pop(question))
    assert not left, f"no such exercise: {list(left)}"
    return notebook


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_committed_without_outputs(name):
    for cell in read(name).cells:
        assert not cell.get("outputs"), "outputs may show customers' tickets and measured times: clear them"
        assert cell.get("execution_count") is None


def test_every_figure_of_the_notebook_holds():
    printed = run(read("attention.ipynb"))
    assert "formula and graph by" in printed  # it came as far as the shipped bundle
    assert "times as long (n² alone: 64)" in printed


def test_the_exercises_run_untouched():
    printed = run(read("attention_exercises.ipynb"))
    assert printed.count("not yet") == 16
    assert "right" not in printed


def test_right_answers_are_right(capsys):
    printed = run_here(answered(RIGHT), capsys)
    assert printed.count(": right") == 16
    assert "not yet" not in printed


@pytest.mark.parametrize("question", WRONG)
def test_wrong_answers_are_refused(question, capsys):
    with pytest.raises(AssertionError, match="not quite"):
        run_here(answered({question: WRONG[question]}), capsys)
