"""The notebooks run from their first cell to their last, and their checks can fail."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).parents[2] / "docs"
EXECUTED = ["attention.ipynb", "attention_solutions.ipynb"]
NOT_STORED = "not-stored"  # the tag of a cell whose output shows a ticket of the course or measured times

# Wrong answers, by the line of the exercise cell that they replace.
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


def is_question(cell):
    """Whether a cell has `...` where an answer belongs; the cell that defines `check` names it, too."""
    return cell.cell_type == "code" and "..." in cell.source and "def check(" not in cell.source


def answered(answers):
    notebook = read("attention_exercises.ipynb")
    left = dict(answers)
    for cell in notebook.cells:
        for question in [question for question in left if question in cell.source]:
            cell.source = cell.source.replace(question, left.pop(question))
    assert not left, f"no such exercise: {list(left)}"
    return notebook


@pytest.mark.parametrize("name", EXECUTED)
def test_stored_outputs_show_no_paths(name):
    for cell in read(name).cells:
        stored = json.dumps(cell.get("outputs", []))
        assert not re.search(r"/(work|root|home|tmp|Users)/", stored), cell.source


def test_tagged_cells_store_nothing():
    tagged = [cell for cell in read("attention.ipynb").cells if NOT_STORED in cell.metadata.get("tags", [])]
    assert any("valid.csv" in cell.source for cell in tagged)
    assert any("perf_counter" in cell.source for cell in tagged)
    assert not any(cell.outputs for cell in tagged)


def kinds(cell):
    """Which kinds of output a cell has; stderr left out, where a library may warn."""
    return {
        output.output_type for output in cell.get("outputs", []) if output.get("name", "stdout") == "stdout"
    }


def test_every_figure_of_the_notebook_holds():
    notebook = read("attention.ipynb")
    stored = [kinds(cell) for cell in notebook.cells]
    printed = run(notebook)
    assert "formula and graph by" in printed  # it came as far as the shipped bundle
    assert "times as long (n² alone: 64)" in printed
    for cell, before in zip(notebook.cells, stored, strict=True):
        if NOT_STORED not in cell.metadata.get("tags", []):
            assert before == kinds(cell), f"stored outputs are missing or old:\n{cell.source}"


def test_the_exercises_store_no_outputs():
    assert not any(cell.get("outputs") for cell in read("attention_exercises.ipynb").cells)


def test_the_exercises_run_untouched():
    printed = run(read("attention_exercises.ipynb"))
    assert printed.count("not yet") == 16
    assert "right" not in printed


def test_the_solutions_are_right(capsys):
    notebook = read("attention_solutions.ipynb")
    stored = "".join(output.text for cell in notebook.cells for output in cell.get("outputs", []))
    printed = run_here(notebook, capsys)
    assert printed == stored
    assert printed.count(": right") == 16
    assert "not yet" not in printed


def test_the_solutions_answer_the_exercises():
    exercises, solutions = read("attention_exercises.ipynb").cells, read("attention_solutions.ipynb").cells
    for asked, answer in zip(exercises[1:], solutions[1:], strict=True):
        assert asked.cell_type == answer.cell_type
        if not is_question(asked):
            assert asked.source == answer.source


@pytest.mark.parametrize("question", WRONG)
def test_wrong_answers_are_refused(question, capsys):
    with pytest.raises(AssertionError, match="not quite"):
        run_here(answered({question: WRONG[question]}), capsys)
