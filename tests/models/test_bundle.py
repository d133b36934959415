"""The bundle: whole or not at all when written, sound or refused when read."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from pydantic import ValidationError

from models import bundle
from models.bundle import BundleConfig, BundleError, load_bundle, seal, verify_bundle, write_bundle
from tests.models.small_graph import small_graph

FILES = {"model.onnx", "tokenizer.json", "config.json", "MODEL_CARD.md"}
Contents = Callable[..., dict[str, Any]]


def config_of(folder: Path) -> BundleConfig:
    return BundleConfig.model_validate_json((folder / "config.json").read_bytes())


def reseal(folder: Path, **changes: Any) -> None:
    """Change config.json as `write_bundle` would have written it: its own digest fits again."""
    (folder / "config.json").write_bytes(seal(config_of(folder).model_copy(update=changes))[0])


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Change a file and list its new sha256."""
    (folder / name).write_bytes(data)
    reseal(folder, sha256=config_of(folder).sha256 | {name: bundle._sha256(data)})


def refused(folder: Path, file: str, reason: str) -> None:
    with pytest.raises(BundleError, match=reason) as caught:
        verify_bundle(folder)
    assert caught.value.file == file
    assert str(caught.value).startswith(f"{file}: ")


# ------------------------------------------------------------------------------------------ sound ones


def test_a_written_bundle_is_read_back(small_bundle: Path, contents: Contents) -> None:
    assert {path.name for path in small_bundle.iterdir()} == FILES
    loaded = load_bundle(small_bundle)
    assert loaded.config.teams == ["delivery", "payment", "account"]
    assert loaded.config.sha256.keys() == FILES - {"config.json"}
    assert loaded.folder == small_bundle
    encoding = loaded.tokenizer.encode("my parcel is late")
    (logits,) = loaded.session.run(["logits"], {"input_ids": np.array([encoding.ids])})
    assert logits.shape == (1, 3)
    assert verify_bundle(small_bundle) == loaded.config == config_of(small_bundle)


def test_reports_lie_beside_and_are_listed(tmp_path: Path, contents: Contents) -> None:
    written = write_bundle(
        tmp_path / "b", **contents(reports={"report.html": "<p>é</p>", "report.json": "{}"})
    )
    assert {"report.html", "report.json"} <= written.sha256.keys()
    assert verify_bundle(tmp_path / "b") == written
    (tmp_path / "b" / "report.html").write_text("<p>e</p>")
    refused(tmp_path / "b", "report.html", "sha256")


def test_the_same_contents_give_the_same_bytes(tmp_path: Path, contents: Contents) -> None:
    for name in ("one", "other"):
        write_bundle(tmp_path / name, **contents())
    assert (tmp_path / "one/config.json").read_bytes() == (tmp_path / "other/config.json").read_bytes()


def test_a_bundle_without_attention_is_sound(tmp_path: Path, contents: Contents) -> None:
    graph = small_graph(contents()["config"].vocab_size, 3, attention=False)
    write_bundle(tmp_path / "b", **contents(model=graph))


def test_hidden_files_are_not_part_of_it(small_bundle: Path) -> None:
    (small_bundle / ".directory").write_text("left by a file manager")
    verify_bundle(small_bundle)


def test_a_link_to_the_folder_is_followed(small_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(small_bundle)
    verify_bundle(tmp_path / "current")


# ---------------------------------------------------------------------------------------- unsound ones


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file(small_bundle: Path, name: str) -> None:
    (small_bundle / name).unlink()
    refused(small_bundle, name, "is missing")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "MODEL_CARD.md"])
def test_a_file_that_must_be_there_cannot_be_left_off_the_list(small_bundle: Path, name: str) -> None:
    listed = config_of(small_bundle).sha256
    listed.pop(name)
    (small_bundle / name).unlink()
    reseal(small_bundle, sha256=listed)
    refused(small_bundle, name, "is missing")


@pytest.mark.parametrize("name", ["notes.txt", "model.onnx.data", "report.html", "weights.pkl"])
def test_a_file_that_is_not_listed(small_bundle: Path, name: str) -> None:
    (small_bundle / name).write_text("anything")
    refused(small_bundle, name, "not listed")


@pytest.mark.parametrize("name", sorted(FILES))
def test_any_changed_byte(small_bundle: Path, name: str) -> None:
    path, random_byte = small_bundle / name, random.Random(name)
    sound = path.read_bytes()
    places = range(len(sound)) if len(sound) < 200 else random_byte.sample(range(len(sound)), 60)
    for place in places:
        changed = bytearray(sound)
        changed[place] ^= 1 << random_byte.randrange(8)
        path.write_bytes(bytes(changed))
        with pytest.raises(BundleError) as caught:
            verify_bundle(small_bundle)
        assert caught.value.file == name
    path.write_bytes(sound)
    verify_bundle(small_bundle)


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_file_cut_short(small_bundle: Path, name: str, share: float) -> None:
    data = (small_bundle / name).read_bytes()
    (small_bundle / name).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BundleError) as caught:
        verify_bundle(small_bundle)
    assert caught.value.file == name


def test_a_file_far_too_large_is_not_read_whole(small_bundle: Path) -> None:
    with (small_bundle / "model.onnx").open("r+b") as file:
        file.truncate(3 << 30)  # without blocks: the disk has room
    refused(small_bundle, "model.onnx", "larger than 128 MB")


@pytest.mark.parametrize("version", [0, 3, "1", None, True, 1.5])
def test_another_schema_version(small_bundle: Path, version: object) -> None:
    content = json.loads((small_bundle / "config.json").read_text()) | {"schema_version": version}
    (small_bundle / "config.json").write_text(json.dumps(content))
    refused(small_bundle, "config.json", "schema version")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 100_000, b'{"schema_version": 1']
)
def test_a_config_that_is_no_json_object(small_bundle: Path, data: bytes) -> None:
    (small_bundle / "config.json").write_bytes(data)
    refused(small_bundle, "config.json", "is not JSON|schema version")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("teams", "delivery"),
        ("teams", ["delivery"]),
        ("teams", ["delivery", "delivery"]),
        ("teams", ["delivery", 5]),
        ("teams", ["delivery", ""]),
        ("max_tokens", 0),
        ("max_tokens", "120"),
        ("max_tokens", 12.0),
        ("temperature", 0),
        ("exponent", 0),
        ("exponent", float("nan")),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("thresholds", {"confidence": 1.2}),
        ("thresholds", {}),
        ("thresholds", None),
        ("thresholds", {"confidence": 0.7, "teams": [0.5]}),
        ("tradeoff", {"tickets": 10, "team_tickets": [10], "choices": []}),
        ("tradeoff", {"tickets": 10, "team_tickets": [10], "choices": [{"precision": 0.9}]}),
        ("sha256", {"model.onnx": 5}),
        ("vocab_size", True),
        ("window", -1),
        ("window", 3),
        ("teams", ["delivery", "x" * 201]),
        ("out_of_scope", {"languages": ["Klingon"]}),
        ("name", ""),
        ("surprise", 1),
    ],
)
def test_a_config_with_a_wrong_value_names_it(small_bundle: Path, field: str, value: object) -> None:
    content = json.loads((small_bundle / "config.json").read_text()) | {field: value}
    (small_bundle / "config.json").write_text(json.dumps(content))
    refused(small_bundle, "config.json", field)


def test_a_config_edited_by_hand(small_bundle: Path) -> None:
    path = small_bundle / "config.json"
    path.write_text(path.read_text().replace('"confidence": 0.7', '"confidence": 0.1'))
    refused(small_bundle, "config.json", "digest")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"input_name": "ids"}, "must take input_ids"),
        ({"input_type": TensorProto.INT32}, "must take input_ids"),
        ({"input_shape": ["batch", "tokens", 1]}, "must take input_ids|cannot open|can open"),
        ({"extra_input": "more"}, "must take input_ids"),
        ({"output_name": "scores"}, "must give logits"),
        ({"input_shape": ["batch", 4]}, "cannot give logits for 2 x 3 ids"),
        ({"input_shape": [1, "tokens"]}, "cannot give logits for 2 x 3 ids"),
        ({"table": np.full((10, 3), np.nan, np.float32)}, "not finite"),
        ({"table": np.zeros((9, 3), np.float32)}, "cannot give logits"),
    ],
)
def test_a_graph_that_breaks_the_contract(small_bundle: Path, changes: dict[str, Any], reason: str) -> None:
    assert config_of(small_bundle).vocab_size == 10
    replace_file(small_bundle, "model.onnx", small_graph(10, 3, **changes))
    refused(small_bundle, "model.onnx", reason)


def test_a_graph_with_another_number_of_teams(small_bundle: Path) -> None:
    replace_file(small_bundle, "model.onnx", small_graph(10, 4))
    refused(small_bundle, "model.onnx", r"logits of shape \(2, 4\) .* config.json names 3 teams")


def test_what_is_not_a_graph(small_bundle: Path) -> None:
    for data in (b"", b"not a graph", os.urandom(1000)):
        replace_file(small_bundle, "model.onnx", data)
        refused(small_bundle, "model.onnx", "not a graph")


def test_a_tokenizer_of_another_size(small_bundle: Path) -> None:
    reseal(small_bundle, vocab_size=11)
    refused(small_bundle, "tokenizer.json", "10 vocabulary entries, config.json says 11")


def test_what_is_not_a_tokenizer(small_bundle: Path) -> None:
    for data in (b"{}", b"\xff", b"null"):
        replace_file(small_bundle, "tokenizer.json", data)
        refused(small_bundle, "tokenizer.json", "not a tokenizer|decode")


def test_a_folder_that_is_none(small_bundle: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"), "does not exist")
    refused(small_bundle / "config.json", str(small_bundle / "config.json"), "is a file")
    (small_bundle / "config.json").unlink()  # some other folder: nothing of it is read
    (small_bundle / "pipe").unlink(missing_ok=True)
    os.mkfifo(small_bundle / "pipe")
    refused(small_bundle, "config.json", "is missing")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "config.json", "is missing")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_link_in_place_of_a_file(small_bundle: Path, tmp_path: Path, name: str) -> None:
    (small_bundle / name).rename(tmp_path / name)
    (small_bundle / name).symlink_to(tmp_path / name)
    refused(small_bundle, name, "not a regular file")


def test_a_folder_or_a_pipe_in_place_of_a_file(small_bundle: Path) -> None:
    (small_bundle / "MODEL_CARD.md").unlink()
    (small_bundle / "MODEL_CARD.md").mkdir()
    refused(small_bundle, "MODEL_CARD.md", "not a regular file")
    (small_bundle / "MODEL_CARD.md").rmdir()
    os.mkfifo(small_bundle / "MODEL_CARD.md")
    refused(small_bundle, "MODEL_CARD.md", "not a regular file")


def test_a_listed_name_that_leads_out_of_the_folder(small_bundle: Path) -> None:
    secret = small_bundle.parent / "secret"
    secret.write_text("secret")
    reseal(small_bundle, sha256=config_of(small_bundle).sha256 | {"../secret": bundle._sha256(b"secret")})
    refused(small_bundle, "../secret", "is missing")


# -------------------------------------------------------------------------------------------- writing


def test_replaces_a_bundle(small_bundle: Path, contents: Contents) -> None:
    write_bundle(small_bundle, **contents(reports={"report.json": "{}"}))
    write_bundle(small_bundle, **contents(model_card="# Newer\n"))
    assert {path.name for path in small_bundle.iterdir()} == FILES
    assert (small_bundle / "MODEL_CARD.md").read_text() == "# Newer\n"
    assert [path.name for path in small_bundle.parent.iterdir()] == ["small"]


def test_replaces_a_bundle_where_the_system_cannot_exchange_folders(
    small_bundle: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_exchange", lambda *_: False)
    write_bundle(small_bundle, **contents(model_card="# Newer\n"))
    assert verify_bundle(small_bundle)
    assert (small_bundle / "MODEL_CARD.md").read_text() == "# Newer\n"
    assert [path.name for path in small_bundle.parent.iterdir()] == ["small"]


def test_writes_into_an_empty_folder_and_makes_parents(tmp_path: Path, contents: Contents) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a/b/c"):
        write_bundle(folder, **contents())
        verify_bundle(folder)


def test_never_replaces_a_folder_that_is_no_bundle(tmp_path: Path, contents: Contents) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match=r"'thesis.txt'.*choose another folder"):
        write_bundle(tmp_path / "home", **contents())
    with pytest.raises(BundleError, match="is a file"):
        write_bundle(tmp_path / "home/thesis.txt", **contents())
    (tmp_path / "link").symlink_to(tmp_path / "home")
    with pytest.raises(BundleError, match="symbolic link"):
        write_bundle(tmp_path / "link", **contents())
    assert (tmp_path / "home/thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "changes",
    [{"model": b"not a graph"}, {"tokenizer_json": "{}"}, {"reports": {"notes.txt": "x"}}],
    ids=["graph", "tokenizer", "report"],
)
def test_an_unsound_bundle_is_not_written(
    small_bundle: Path, contents: Contents, changes: dict[str, Any]
) -> None:
    before = {path.name: path.read_bytes() for path in small_bundle.iterdir()}
    with pytest.raises(BundleError):
        write_bundle(small_bundle, **contents(**changes))
    assert {path.name: path.read_bytes() for path in small_bundle.iterdir()} == before
    assert [path.name for path in small_bundle.parent.iterdir()] == ["small"]


def test_a_full_disk_leaves_the_old_bundle(
    small_bundle: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "_write_through", no_space)
    with pytest.raises(OSError, match="No space"):
        write_bundle(small_bundle, **contents())
    assert verify_bundle(small_bundle)
    assert [path.name for path in small_bundle.parent.iterdir()] == ["small"]


WRITER = """
    import sys
    from pathlib import Path
    from models.bundle import load_bundle, write_bundle
    old = Path(sys.argv[1])
    config = load_bundle(old).config
    model, tokenizer = (old / "model.onnx").read_bytes(), (old / "tokenizer.json").read_text()
    print("ready", flush=True)
    while True:
        write_bundle(sys.argv[2], model=model, tokenizer_json=tokenizer, config=config, model_card="# Again")
"""


def test_readers_never_see_half_a_bundle_even_when_the_writer_is_killed(
    small_bundle: Path, tmp_path: Path
) -> None:
    """A process replaces one bundle over and over and is killed with -9 three times; every read is sound."""
    target = tmp_path / "served"
    shutil.copytree(small_bundle, target)
    reads = 0
    for _ in range(3):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(small_bundle), str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
                until = time.monotonic() + 1
                while time.monotonic() < until:
                    verify_bundle(target)
                    reads += 1
            finally:
                writer.send_signal(signal.SIGKILL)
    assert reads > 3
    verify_bundle(target)


def test_config_refuses_unknown_fields_when_made() -> None:
    with pytest.raises(ValidationError, match="surprise"):
        BundleConfig.model_validate({"surprise": 1})
