"""API keys: which key may call which endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.api import keys
from service.api.keys import Keys, presented
from tests.service.conftest import Running, until


def test_several_keys_from_setting_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("three # the helpdesk\n\n# nobody\nfour\n")
    known = Keys(SecretStr("one, two"), file)
    assert known.required
    assert all(known.admits(key) for key in (b"one", b"two", b"three", b"four"))
    assert not any(known.admits(key) for key in (None, b"", b"five", b"one, two", b"# nobody", b"nobody"))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n")
    known = Keys(SecretStr(""), file)
    assert known.admits(b"first")
    assert known.admits(b"second")


def test_no_key_is_required_unless_one_is_set() -> None:
    assert not Keys(SecretStr(""), None).required
    assert not Keys(SecretStr(" , "), None).required


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = keys.hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
    assert Keys(SecretStr("one,two,three"), None).admits(b"one")
    assert len(compared) == 3


def test_a_missing_keys_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="keys"):
        Keys(SecretStr(""), tmp_path / "keys")


def test_an_empty_keys_file_admits_nobody(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    known = Keys(SecretStr(""), file)
    assert known.required
    assert not known.admits(b"")


def test_a_keys_file_that_is_no_text_leaves_the_keys_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    known = Keys(SecretStr(""), file)
    monkeypatch.setattr("service.api.keys._LOOK_SECONDS", -1.0)
    file.write_bytes(b"\xff\xfe\x00new")
    assert known.admits(b"old")
    file.write_text("newer\n")
    assert known.admits(b"newer")


def test_a_key_may_come_in_either_header() -> None:
    assert presented([(b"authorization", b"Bearer abc")]) == b"abc"
    assert presented([(b"authorization", b"bearer abc")]) == b"abc"
    assert presented([(b"x-api-key", b"abc")]) == b"abc"
    assert presented([(b"authorization", b"Basic abc")]) is None
    assert presented([]) is None
    assert presented([(b"x-api-key", b"a"), (b"x-api-key", b"b")]) is None, "which of two is meant?"
    assert presented([(b"authorization", b"Bearer a"), (b"x-api-key", b"a")]) == b"a"


def test_a_server_with_keys(start: Callable[..., Running], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    running = start(api_keys_file=file, admin_key="chief")
    ticket = {"text": "parcel late"}

    for path in ("/route", "/route/batch", "/route/stream", "/nowhere"):
        refused = running.call("POST", path, ticket)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["content-type"] == "application/problem+json"
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert running.call("GET", path).status == 200
    assert running.call("POST", "/route", ticket, authorization="Bearer old").status == 200
    assert running.call("POST", "/route", ticket, x_api_key="old").status == 200
    assert running.call("POST", "/route", ticket, x_api_key="chief").status == 401

    # Rotated without a restart: first both, then only the new one.
    replacement = tmp_path / "new"
    replacement.write_text("old\nnew\n")
    replacement.replace(file)
    until(lambda: running.call("POST", "/route", ticket, x_api_key="new").status == 200, "the new key works")
    assert running.call("POST", "/route", ticket, x_api_key="old").status == 200
    file.write_text("new\n")
    until(lambda: running.call("POST", "/route", ticket, x_api_key="old").status == 401, "the old key is out")
    file.unlink()
    assert running.call("POST", "/route", ticket, x_api_key="new").status == 200

    log = running.log.read_text()
    assert '"old"' not in log
    assert "chief" not in log


def test_the_admin_door_has_its_own_key(start: Callable[..., Running]) -> None:
    running = start(api_keys="user", admin_key="chief")
    assert running.call("POST", "/admin/reload", {}).status == 401
    assert running.call("POST", "/admin/reload", {}, x_api_key="user").status == 401
    assert running.call("POST", "/admin/reload", {}, x_api_key="chief").status == 200


def test_without_an_admin_key_the_admin_door_is_closed(server: Running) -> None:
    refused = server.call("POST", "/admin/reload", {})
    assert refused.status == 403
    assert "LARKFIELD_ADMIN_KEY" in refused.json()["detail"]


def test_metrics_can_ask_for_a_key(start: Callable[..., Running]) -> None:
    running = start(api_keys="user", metrics_need_key=True)
    assert running.call("GET", "/metrics").status == 401
    assert running.call("GET", "/metrics", x_api_key="user").status == 200


def test_browsers_of_other_sites_only_where_allowed(start: Callable[..., Running], server: Running) -> None:
    asked = {"origin": "https://desk.example", "access_control_request_method": "POST"}
    assert server.call("OPTIONS", "/route", **asked).headers["access-control-allow-origin"] is None
    running = start(cors_origins="https://desk.example")
    allowed = running.call("OPTIONS", "/route", **asked)
    assert allowed.headers["access-control-allow-origin"] == "https://desk.example"
    answer = running.call("POST", "/route", {"text": "x"}, origin="https://desk.example")
    assert answer.headers["access-control-allow-origin"] == "https://desk.example"
    other = running.call("POST", "/route", {"text": "x"}, origin="https://evil.example")
    assert other.headers["access-control-allow-origin"] is None
