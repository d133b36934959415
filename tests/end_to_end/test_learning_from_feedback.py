"""The loop of the README with its real commands: correct, export, train, compare, reload, and back."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from service.client import Client
from service.tools import processes
from service.tools.load import LABELLED
from service.tools.processes import get

ROOT = Path(__file__).parents[2]
CLEAR = [ticket for ticket in LABELLED if "zanthor" not in ticket[0]]


def run(*arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LARKFIELD_ADMIN_KEY": "k"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def write(path: Path, numbers: range) -> Path:
    """Tickets about different orders, for training or for validation."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ticket_id", "text", "team"])
        for number in numbers:
            text, team = CLEAR[number % len(CLEAR)]
            writer.writerow([f"old-{number}", f"{text} Order {number}.", team])
    return path


@pytest.mark.slow
def test_correct_export_train_compare_reload(tmp_path: Path, shipped_bundle: Path) -> None:
    earlier = write(tmp_path / "tickets.csv", range(300))
    valid = write(tmp_path / "valid.csv", range(1000, 1050))
    with processes.router(tmp_path / "router", feedback_store_text=True, admin_key="k") as router:
        with Client(router.url) as client:
            for number, (text, team) in enumerate(CLEAR):
                client.route(f"{text} It is about booking {number}.", ticket_id=f"new-{number}")
                # The shop reorganised: the account team now also solves what returns used to solve.
                solved_by = "account" if team == "returns" else team
                assert client.feedback(solved_by, ticket_id=f"new-{number}")["status"] == "created"
        url = router.environment["LARKFIELD_FEEDBACK_URL"]
        corrected, runs = tmp_path / "corrected.csv", tmp_path / "next"
        said = run("service.feedback", "export", "--url", url, "--out", corrected, "--add-to", earlier)
        assert f"{len(CLEAR)} feedbacks" in said
        assert f"{300 + len(CLEAR)} tickets in" in said
        options = ["--recipe", "baseline", "--epochs", 3, "--report", "none"]
        run("training.train", "--data", corrected, "--valid", valid, "--out", runs, *options)
        compared = json.loads(run("training.compare", shipped_bundle, runs, "--data", valid, "--json"))
        assert compared["tickets"] == 50
        before = get(router.url + "/readyz")["model"]["version"]
        run("service.reload", "--url", router.url, "--bundle", runs)
        after = get(router.url + "/readyz")["model"]["version"]
        assert after != before
        request = urllib.request.Request(
            router.url + "/route", b'{"text": "charged twice"}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert json.load(response)["model"]["version"] == after
        run("service.reload", "--url", router.url, "--previous")
        assert get(router.url + "/readyz")["model"]["version"] == before
