from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings, misspelt, table
from tests.service.conftest import ROOT, Running


def ended(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that has ended by itself, run from the repository."""
    variables = os.environ | (environment or {})
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240, check=False
    )


def test_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARKFIELD_PORT", "8123")
    monkeypatch.setenv("LARKFIELD_MAX_QUEUE", "7")
    settings = Settings()
    assert (settings.port, settings.max_queue) == (8123, 7)


def test_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARKFIELD_WORKERS", "0")
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Settings()


def test_every_setting_is_documented() -> None:
    assert all(field.description for field in Settings.model_fields.values())
    entries = [line for line in table().splitlines() if line.startswith("- `LARKFIELD_")]
    assert len(entries) == len(Settings.model_fields)
    assert "- `LARKFIELD_PORT` (8000): Port to listen on; 0 picks a free one." in entries


def test_docs_carry_the_table() -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    assert table() in page, "run: python -m service.settings docs/serving.md"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.9.9.9"])
def test_loopback_needs_no_key(host: str) -> None:
    Settings(host=host).refuse_unprotected()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_others_may_not_call_without_a_key(host: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no API key is set"):
        Settings(host=host).refuse_unprotected()
    with pytest.raises(ValueError, match="no API key is set"):
        Settings(host=host, api_keys=" , ").refuse_unprotected()
    Settings(host=host, allow_no_keys=True).refuse_unprotected()
    Settings(host=host, api_keys="secret").refuse_unprotected()
    Settings(host=host, api_keys_file=tmp_path / "keys").refuse_unprotected()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--host", "0.0.0.0"], "no API key is set"),
        (["--port", "99999"], "PORT: Input should be less than or equal to 65535"),
        ({"PORT": "abc"}, "PORT: Input should be a valid integer"),
        ({"PORT": "tcp://10.0.0.1:80"}, "PORT: tcp://10.0.0.1:80 is an address, as Kubernetes sets"),
        ({"BUNDLE": ""}, "BUNDLE: is empty: set the folder of a bundle, or unset it"),
        ({"WORKERS": "0"}, "WORKERS: Input should be greater than or equal to 1"),
        ({"DEADLINE_SECONDS": "inf"}, "DEADLINE_SECONDS: Input should be a finite number"),
        ({"API_KEYS_FILE": "{tmp}/none", "WORKERS": "2"}, "API_KEYS_FILE cannot be used: No such file"),
        ({"ADMIN_KEY_FILE": "{tmp}"}, "ADMIN_KEY_FILE cannot be used: Is a directory"),
        ({"API_KEYS_FILE": "{tmp}/bytes"}, "API_KEYS_FILE cannot be used: it is not UTF-8"),
        ({"METRICS_FOLDER": "{tmp}/bytes", "WORKERS": "2"}, "METRICS_FOLDER cannot be used: File exists"),
        ({"METRICS_FOLDER": "{tmp}/bytes/in"}, "METRICS_FOLDER cannot be used: Not a directory"),
        ({"FEEDBACK_URL": "sqlite:///"}, "FEEDBACK_URL: must name a file"),
        ({"FEEDBACK_URL": "postgresql://["}, "FEEDBACK_URL: Invalid IPv6 URL"),
        ({"CORS_ORIGINS": "desk.example.org"}, "CORS_ORIGINS: must be origins such as"),
    ],
)
def test_the_start_is_refused_with_a_sentence(
    flags: list[str] | dict[str, str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    given = {} if isinstance(flags, list) else flags
    environment = {f"LARKFIELD_{name}": value.format(tmp=tmp_path) for name, value in given.items()}
    done = ended([sys.executable, "-m", "service", *([] if given else flags)], environment)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_too_few_open_files_are_told_at_the_start() -> None:
    done = ended(["bash", "-c", 'ulimit -n 64 && exec "$0" -m service --port 0', sys.executable])
    assert done.returncode == 2
    assert "only 64 files may be open, and the service needs 512: raise the limit" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_user_without_home_is_told_to_name_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for name in ("LARKFIELD_FEEDBACK_URL", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValidationError, match="no home folder for the database of feedback: set a file"):
        Settings()
    assert Settings(feedback_url="off").feedback_url == ""
    assert Settings(feedback_url="sqlite:////srv/feedback.db").feedback_url == "sqlite:////srv/feedback.db"


def test_a_feedback_folder_that_cannot_be_made_is_told_and_tickets_are_routed(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    running = start(feedback_url=f"sqlite:///{tmp_path}/file/in/feedback.db")
    assert "cannot be used (Not a directory); tickets are routed" in running.log.read_text()
    assert running.call("GET", "/readyz").status == 200
    assert running.route("my parcel is late").status == 200
    feedback = {"ticket_id": "1", "team": "payment"}
    assert running.call("POST", "/feedback", json.dumps(feedback).encode()).status == 503


def test_a_feedback_folder_that_can_be_made_is_not_complained_about(tmp_path: Path) -> None:
    assert Settings(feedback_url=f"sqlite:///{tmp_path}/a/b/feedback.db").feedback_fault() is None
    assert Settings(feedback_url="off").feedback_fault() is None
    assert Settings(feedback_url="postgresql://db/larkfield").feedback_fault() is None


def test_a_misspelt_setting_is_told(start: Callable[..., Running]) -> None:
    assert misspelt(["LARKFIELD_MAX_QUEUE", "larkfield_port", "PATH"]) == []
    assert misspelt(["LARKFIELD_CACHE", "LARKFIELD_SEED"]) == []  # not the service's, but no slips
    assert misspelt(["LARKFIELD_ZZ"]) == ["LARKFIELD_ZZ is not a setting"]
    running = start(max_qeue=5)
    assert "LARKFIELD_MAX_QEUE is not a setting; did you mean LARKFIELD_MAX_QUEUE?" in running.log.read_text()


def test_a_port_in_use_is_told(start: Callable[..., Running]) -> None:
    running = start()
    done = ended([sys.executable, "-m", "service", "--port", str(running.port)])
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


def test_a_bad_bundle_ends_the_start(tmp_path: Path) -> None:
    done = ended([sys.executable, "-m", "service", "--port", "0", "--bundle", str(tmp_path)])
    assert done.returncode == 3
    assert "config.json" in done.stderr


def test_the_greeting_can_be_pasted(start: Callable[..., Running]) -> None:
    running = start()
    output = running.output.read_text()
    assert running.url in output
    curl = next(line.strip() for line in output.splitlines() if line.strip().startswith("curl"))
    done = subprocess.run(["bash", "-c", curl + " -sS"], capture_output=True, text=True, timeout=240)
    assert '"team"' in done.stdout
    assert "charged" not in output  # these are not the shipped bundle's teams
