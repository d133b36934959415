"""The systemd unit is valid, and sets settings that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "larkfield.service"


def test_its_settings_exist() -> None:
    named = re.findall(r"^Environment=LARKFIELD_(\w+)=", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert named
    assert {name.lower() for name in named} <= Settings.model_fields.keys()


def test_systemd_accepts_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8").replace("/opt/larkfield/bin/python", sys.executable)
    copy.write_text(re.sub(r"^(User|Group)=.*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    about_it = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert about_it == []
    copy.write_text(copy.read_text(encoding="utf-8") + "Typo=yes\n", encoding="utf-8")
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Typo" in checked.stderr
