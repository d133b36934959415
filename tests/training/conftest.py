"""Fixtures of the training room's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from training_examples import ticket_rows, write_csv


@pytest.fixture
def tickets_csv(tmp_path: Path) -> Callable[..., Path]:
    """tickets_csv(count, seed=0, name="tickets.csv") writes that many tickets and gives the file's path."""

    def write(count: int = 60, seed: int = 0, name: str = "tickets.csv") -> Path:
        return write_csv(tmp_path / name, ticket_rows(count, seed))

    return write
