"""Files are written atomically."""

from pathlib import Path

import pytest

from models.files import atomic_write


def test_the_new_content_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_old_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"old")

    def write_half() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise RuntimeError("it broke")

    with pytest.raises(RuntimeError, match="it broke"):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
