"""Shapes of data that are not Larkfield's: rare teams, many teams, two teams, very many tickets."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from training_examples import ticket_rows, write_csv

from models.bundle import load_bundle
from training import train as train_command
from training.assess.evaluation import evaluate
from training.data.dataset import load_dataset

ROOT = Path(__file__).parents[2]
SYLLABLES = ("ba", "do", "fi", "ku", "le", "mo", "na", "pi", "ra", "su", "to", "ve")


def trained(data: Path, out: Path, *flags: str):
    """Train on the file and give the bundle and the figures on its validation tickets."""
    arguments = ["--data", str(data), "--out", str(out), "--recipe", "baseline", "--report", "none", *flags]
    assert train_command.main(arguments) == 0
    bundle = load_bundle(out)
    return bundle, evaluate(bundle, load_dataset(data).valid)


def word(number: int) -> str:
    return "".join(SYLLABLES[number // 12**place % 12] for place in range(3))


def many_teams(teams: int, tickets: int) -> list[dict[str, str]]:
    """Each team has three words of its own among words of everyone."""
    generator = random.Random(0)
    rows = []
    for number in range(teams * tickets):
        team = number % teams
        own = [word(3 * team + generator.randrange(3)) for _ in range(3)]
        text = " ".join([*own, *(word(1_000 + generator.randrange(50)) for _ in range(4)), str(number)])
        rows.append({"ticket_id": str(number), "text": text, "team": f"team {team:03d}"})
    return rows


def test_a_team_with_20_tickets_among_thousands_is_learned(tmp_path):
    rows = [row for row in ticket_rows(3_000) if row["team"] != "garden"]
    rows += [row for row in ticket_rows(60, seed=7) if row["team"] == "garden"]
    assert sum(row["team"] == "garden" for row in rows) == 20
    _, figures = trained(write_csv(tmp_path / "t.csv", rows), tmp_path / "o", "--epochs", "8")
    assert 1 <= figures.per_team["garden"].tickets <= 6  # the split goes by a hash of each text
    assert figures.per_team["garden"].recall == 1
    assert figures.accuracy > 0.97


def test_150_teams(tmp_path):
    data = write_csv(tmp_path / "t.csv", many_teams(150, 20))
    bundle, figures = trained(data, tmp_path / "o", "--epochs", "16")
    assert len(bundle.config.teams) == 150
    assert figures.accuracy > 0.9


def test_more_teams_than_a_picture_can_show_fill_the_report(tmp_path):
    data = write_csv(tmp_path / "t.csv", many_teams(40, 10))
    arguments = ["--data", str(data), "--out", str(tmp_path / "o"), "--recipe", "baseline", "--epochs", "1"]
    assert train_command.main(arguments) == 0
    assert "teams with most mistakes" in (tmp_path / "o" / "report.html").read_text()


def test_two_teams(tmp_path):
    rows = [row for row in ticket_rows(240) if row["team"] != "garden"]
    bundle, figures = trained(write_csv(tmp_path / "t.csv", rows), tmp_path / "o", "--epochs", "16")
    assert bundle.config.teams == ["billing", "kitchen"]
    assert figures.accuracy > 0.9


PEAK_OF_200_000 = """
import resource, sys
from training.train import main
code = main(sys.argv[1:])
print("peak megabytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_200_000_tickets_fit_into_two_and_a_half_gigabytes(tmp_path):
    data = write_csv(tmp_path / "t.csv", ticket_rows(200_000))
    command = [sys.executable, "-c", PEAK_OF_200_000, "--data", str(data), "--out", str(tmp_path / "o")]
    done = subprocess.run(
        [*command, "--recipe", "baseline", "--epochs", "1"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.split("peak megabytes")[1])
    print(f"peak memory {peak} MB")
    assert peak < 2_560  # 2,019 were measured
    held_out = load_bundle(tmp_path / "o").config.metrics["tickets"]
    # A tenth, by a hash of the templates: there are few, each with many tickets that stay on one side.
    assert abs(held_out - 20_000) <= 3_000
