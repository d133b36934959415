"""The yardstick itself: its scores by hand, Shapley's axioms, and the ranking on the shipped bundle."""

import sys

import numpy as np
import pytest

from service.explain import explanations as explain
from service.inference.runtime import Runtime, pad
from service.settings import Settings
from service.tools import faithfulness
from service.tools.faithfulness import Methods, Score, main, score, table
from tests.service.explain.test_explanations import TICKETS
from training.synthetic import generate


@pytest.fixture(scope="module")
def runtime(shipped_bundle):
    return Runtime.load(shipped_bundle, Settings(provider="cpu"))


@pytest.fixture(scope="module")
def tickets(runtime):
    return [runtime.tokenizer.encode(text).ids for text in TICKETS]


class Counts:
    """Two teams; the first one's logit is the number of 9s in a ticket, the other's is 0."""

    def run(self, ids):
        return np.stack([(ids == 9).sum(axis=1), np.zeros(len(ids))], axis=1).astype(np.float32)


def share(nines):
    return 1 / (1 + np.exp(-nines))


def test_a_score_by_hand():
    """Twenty tokens, four of them 9s: the best ranking puts those first, the worst last."""
    ids = [9, 9, 9, 9] + [5] * 16
    best = score(Counts(), lambda ids, _: np.array(ids) == 9, [ids])
    worst = score(Counts(), lambda ids, _: np.array(ids) != 9, [ids])
    # 5, 10, 20 and 50 % of 20 tokens are 1, 2, 4 and 10
    without = np.mean([share(4) - share(left) for left in (3, 2, 0, 0)])
    alone = np.mean([share(4) - share(kept) for kept in (1, 2, 4, 4)])
    assert (best.comprehensiveness, best.sufficiency) == pytest.approx((without, alone))
    assert (worst.comprehensiveness, worst.sufficiency) == pytest.approx((0, share(4) - share(0)))
    assert best.difference > 0 > worst.difference


def test_shapley_values_add_up_and_treat_equals_equally(runtime):
    methods = Methods(runtime)
    ids = runtime.tokenizer.encode("refund my card card please").ids
    contrast = explain.contrast_of(runtime.run(pad([ids]))[0], 1.0).weights[0]
    effects = methods.shapley(ids, contrast)
    whole, nothing = methods.margin([ids, []], contrast)
    assert effects.sum() == pytest.approx(whole - nothing, abs=1e-4)

    class Additive(Methods):
        def margin(self, rows, contrast):
            return np.array([sum(row) for row in rows], float)

    np.testing.assert_allclose(Additive(runtime).shapley([3, 1, 4, 1], contrast), [3, 1, 4, 1])


def test_leaving_one_out_is_what_it_says(runtime, tickets):
    methods = Methods(runtime)
    ids = tickets[0]
    contrast = explain.contrast_of(runtime.run(pad([ids]))[0], 1.0).weights[0]
    effects = methods.leave_one_out(ids, contrast)
    whole, third_gone = methods.margin([ids, ids[:2] + ids[3:]], contrast)
    assert effects[2] == pytest.approx(whole - third_gone, abs=1e-5)
    assert methods.stretches(ids, contrast).shape == effects.shape


def test_the_shipped_method_is_the_most_faithful_of_those_that_are_fast(runtime):
    methods = Methods(runtime)
    tickets = [runtime.tokenizer.encode(ticket.text).ids for ticket in generate(40, seed=7, styles=["plain"])]
    scores = {name: score(runtime, method, tickets).difference for name, method in methods.all().items()}
    ours = scores.pop("decomposition")
    fast = ["attention, mean received", "attention rollout", "random"]
    assert all(ours > scores[name] + 0.1 for name in fast)
    assert ours > scores[f"leave out one of {explain.MOST_ABLATIONS} stretches"]


def test_the_table_is_ranked():
    shown = table({"worse": Score(0.2, 0.1, 1), "better": Score(0.5, 0.1, 2)})
    assert shown.splitlines()[2:] == [
        "| better | 0.500 | 0.100 | 0.400 | 2.00 |",
        "| worse | 0.200 | 0.100 | 0.100 | 1.00 |",
    ]


def test_the_command_prints_its_tables(shipped_bundle, tmp_path, capsys):
    data = tmp_path / "tickets.csv"
    data.write_text("text\n" + "\n".join(f'"{text}"' for text in TICKETS), encoding="utf-8")
    main(["--bundle", str(shipped_bundle), "--data", str(data), "--without-calls", "--tickets", "6"])
    printed = capsys.readouterr().out
    for name in (
        "decomposition",
        "leave one out",
        "integrated gradients, 20 steps",
        "random",
        "Shapley, exact",
    ):
        assert f"| {name} |" in printed


def test_without_torch_the_rest_is_still_measured(shipped_bundle, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "training.export.gradients", None)
    assert faithfulness.gradient_methods(shipped_bundle) == {}
    assert "without the gradient methods" in capsys.readouterr().err


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"is not there; name a CSV file"):
        main(["--data", str(tmp_path / "none.csv")])
    other = tmp_path / "other.csv"
    other.write_text("body\nhello\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="a column named 'text' is needed"):
        main(["--data", str(other)])
