"""The configuration file: what is wrong is said by key, and no secret is ever in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.connect.__main__ import main
from service.connect.config import Config, ConfigError, load

GOOD = """
[desks.rt]
kind = "rt"
url = "https://rt.example.org/"
entry = ["General"]
token_env = "RT_TOKEN"
[desks.rt.teams]
payment = ["Payments", "Payments 2"]
delivery = "Delivery"
"""


def read(folder: Path, text: str) -> Config:
    (folder / "connect.toml").write_text(text)
    return load(folder / "connect.toml")


def test_a_good_file(tmp_path: Path) -> None:
    desk = read(tmp_path, GOOD).desks["rt"]
    assert (desk.mode, desk.url) == ("notes", "https://rt.example.org")
    assert desk.queue_of("payment") == "Payments"
    assert desk.queue_of("legal") is None
    assert [desk.team_of(queue) for queue in ("Payments 2", "Delivery", "General", "Legal")] == [
        "payment",
        "delivery",
        None,
        "Legal",
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('kind = "rt"', 'kind = "rtx"', "desks.rt.kind"),
        ('url = "https://rt', 'url = "rt', "desks.rt.url: must begin with http:// or https://"),
        ('entry = ["General"]', "", "desks.rt.entry: is missing"),
        ('entry = ["General"]', 'enty = ["General"]', "desks.rt.enty: unknown key; is entry meant?"),
        ('token_env = "RT_TOKEN"', 'token = "s3cr3t"', "desks.rt.token: secrets are not written here; use"),
        ('kind = "rt"', 'kind = "rt"\nmode = "on"', 'desks.rt.mode: must be "notes"'),
        ('delivery = "Delivery"', 'delivery = "Payments"', "belongs to 'payment' and to 'delivery'"),
        ('delivery = "Delivery"', 'delivery = "General"', "is also an entry queue"),
        (
            'delivery = "Delivery"',
            'delivery = ""',
            "desks.rt.teams.delivery.0: String should have at least 1",
        ),
        ("[desks.rt]", "[desks.rt", "is not TOML"),
    ],
)
def test_a_wrong_file_names_the_key(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD.replace(before, after))
    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


NUMBERED = GOOD.replace('kind = "rt"', 'kind = "django-helpdesk"').replace(
    "[desks.rt.teams]",
    'queue_ids = {General = 1, Payments = 2, "Payments 2" = 3, Delivery = 4}\n[desks.rt.teams]',
)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("General = 1, ", "", "queue_ids: the number of queue 'General' is missing"),
        ("Delivery = 4", "Delivery = 2", "queue_ids: 'Payments' and 'Delivery' have the same number 2"),
        ("Delivery = 4", 'Delivery = "4"', "desks.rt.queue_ids.Delivery: Input should be a valid integer"),
        ('"django-helpdesk"', '"rt"', "queue_ids: a desk of the kind 'django-helpdesk' needs this, and no"),
        ('"django-helpdesk"', '"jira"', "project: a desk of the kind 'jira' needs this"),
        ('"django-helpdesk"', '"generic"', "generic: a desk of the kind 'generic' needs this"),
        ("queue_ids = {", 'queue_field = "team"\nqueue_ids = {', "desks.rt.queue_field: String should match"),
    ],
)
def test_a_key_of_one_kind_of_desk(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert read(tmp_path, NUMBERED).desks["rt"].queue_ids["Delivery"] == 4
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, NUMBERED.replace(before, after))
    assert said in str(caught.value)


GENERIC = (
    GOOD.replace('kind = "rt"', 'kind = "generic"')
    + """
[desks.rt.generic]
ticket = "id"
read = "/tickets/{ticket}"
[desks.rt.generic.search]
changed = "/tickets?since={since}"
"""
)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('read = "/tickets/{ticket}"\n', "", "read: a desk with a search needs the address of a ticket"),
        ("\nread =", "\nred =", "desks.rt.generic.red: unknown key; is read meant?"),
        ("\nchanged", "\nchange", "desks.rt.generic.search.change: unknown key; is changed meant?"),
    ],
)
def test_a_key_of_the_generic_desk(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert read(tmp_path, GENERIC).desks["rt"].generic is not None
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GENERIC.replace(before, after))
    assert said in str(caught.value)


def test_a_missing_secret_stops_the_start_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RT_TOKEN", raising=False)
    (tmp_path / "connect.toml").write_text(GOOD)
    assert main(["status", "--config", str(tmp_path / "connect.toml")]) == 2
    assert "desks.rt.token_env: the environment variable RT_TOKEN is not set" in capsys.readouterr().err


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    file = tmp_path / "token"
    desk = read(tmp_path, GOOD.replace('token_env = "RT_TOKEN"', f'token_file = "{file}"')).desks["rt"]
    assert desk.secret("token") == "abc"


def test_status_and_replay_of_an_empty_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RT_TOKEN", "abc")
    (tmp_path / "connect.toml").write_text(GOOD)
    assert main(["status", "--config", str(tmp_path / "connect.toml")]) == 0
    assert main(["replay", "--config", str(tmp_path / "connect.toml")]) == 0
    said = capsys.readouterr().out
    assert "rt: 0 waiting (0 s behind), 0 done, 0 parked" in said
    assert "0 parked events wait again" in said
