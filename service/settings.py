"""Every knob of the service: an environment variable `LARKFIELD_…`, its default, and why it is so.

`python -m service.settings` prints them as a table; `python -m service.settings docs/serving.md` puts the
table into that page.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from models.tradeoff import HIGHEST_PRECISION, LOWEST_PRECISION
from service.api.keys import Keys

# Variables of the same prefix that other parts of the product read: where kernels are kept, and which
# random inputs its tests draw.
_READ_ELSEWHERE = ("CACHE", "SEED")
SHIPPED_BUNDLE = Path(__file__).resolve().parent.parent / "models" / "larkfield"


class Settings(BaseSettings):
    """Settings read from the environment; anything out of range stops the start with a message."""

    model_config = SettingsConfigDict(
        env_prefix="LARKFIELD_", frozen=True, extra="ignore", allow_inf_nan=False
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(1, ge=1, le=256, description="Worker processes; one per core is right.")
    bundle: Path = Field(SHIPPED_BUNDLE, description="Folder of the bundle to serve.", validate_default=True)
    precision: float | None = Field(
        None,
        ge=LOWEST_PRECISION,
        le=HIGHEST_PRECISION,
        description="Share of routed tickets that should be right; not set = as the bundle was written.",
    )
    bundle_watch_seconds: float = Field(
        0,
        ge=0,
        description="Look this often whether the bundle's folder changed, and reload; 0 = never.",
    )
    provider: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Where the graph runs; auto = CUDA where a device is, with the CPU behind it.",
    )

    api_keys: SecretStr = Field(
        SecretStr(""), description="Keys that may call /route, comma separated; empty = no key asked."
    )
    api_keys_file: Path | None = Field(
        None, description="File with one API key a line; read again when it changes, so keys rotate."
    )
    admin_key: SecretStr = Field(
        SecretStr(""), description="Key of POST /admin/reload; empty = the endpoint is closed."
    )
    admin_key_file: Path | None = Field(None, description="File with the admin key; read again on change.")
    allow_no_keys: bool = Field(
        False, description="Serve without API keys on an address that others can reach."
    )
    metrics_need_key: bool = Field(False, description="Ask for an API key on /metrics too.")
    cors_origins: str = Field("", description="Origins that browsers may call from, comma separated.")

    max_body_bytes: int = Field(
        262_144, ge=1024, description="Largest request body; beyond it 413, before it is read whole."
    )
    max_batch_tickets: int = Field(256, ge=1, description="Most tickets in one POST /route/batch.")
    max_batch_body_bytes: int = Field(8_388_608, ge=1024, description="Largest body of POST /route/batch.")
    max_bytes_in_flight: int = Field(
        67_108_864, ge=1024, description="Bodies of all requests in flight, per worker; beyond it 503."
    )
    max_connections: int = Field(4096, ge=1, description="Open connections per worker; beyond it 503.")
    max_queue: int = Field(
        128, ge=1, description="Tickets accepted and not yet answered, per worker; beyond it 503."
    )
    max_explanations: int = Field(
        4, ge=1, description="Explanations waiting or running, per worker; beyond it 503."
    )
    deadline_seconds: float = Field(
        2.0, gt=0, description="A ticket not answered by then gets 504 and leaves the queue."
    )
    explain_deadline_seconds: float = Field(10.0, gt=0, description="The same for an explanation.")
    retry_after_seconds: int = Field(1, ge=1, description="Retry-After of a 503.")

    batch_tokens: int = Field(
        0,
        ge=0,
        description="Padded tokens in one run of the graph; 0 = 512 on a CPU, 65536 on a GPU.",
    )
    batch_tickets: int = Field(
        0, ge=0, description="Tickets in one run of the graph; 0 = 16 on a CPU, 512 on a GPU."
    )
    inline_tokens: int = Field(
        160,
        ge=0,
        description="Padded tokens that are run between two looks at the connections; longer tickets go to a "
        "thread of their own.",
    )
    intra_op_threads: int = Field(1, ge=1, le=256, description="Threads inside one run of the graph.")

    header_timeout_seconds: float = Field(10.0, gt=0, description="Time to send a request's headers.")
    body_timeout_seconds: float = Field(
        30.0, gt=0, description="Time to send a body (on /route/stream: the longest pause within it)."
    )
    write_timeout_seconds: float = Field(
        30.0, gt=0, description="A client that reads nothing for this long is cut off."
    )
    keep_alive_seconds: float = Field(65.0, gt=0, description="Idle time before a connection is closed.")
    drain_seconds: float = Field(
        1.0,
        ge=0,
        description="After SIGTERM: time with readiness red before connections are refused.",
    )
    shutdown_seconds: float = Field(20.0, gt=0, description="Longest wait for requests in flight at the end.")

    feedback_url: str = Field(
        "",
        validate_default=True,
        description="Database of decisions and feedback: sqlite:///… or postgresql://…; off = none. "
        "Default: feedback.db in the user's state folder (~/.local/state/larkfield).",
    )
    feedback_retention_days: float = Field(
        365, gt=0, description="Decisions and feedback older than this are deleted."
    )
    feedback_most_decisions: int = Field(
        1_000_000, ge=1000, description="Newest decisions that are kept, whatever their age."
    )
    feedback_store_text: bool = Field(
        False, description="Also keep the text of tickets, so that feedback can be trained on."
    )
    feedback_text_days: float = Field(30, gt=0, description="Kept text is deleted after this many days.")
    drift_window: int = Field(
        2000,
        ge=10,
        description="Drift and accuracy are over this many newest tickets of the served version.",
    )
    drift_least: int = Field(200, ge=1, description="With fewer tickets than this there is no figure.")
    drift_seconds: float = Field(15.0, gt=0, description="Time between two measurements of drift.")
    shadow_bundle: Path | None = Field(
        None, description="A second bundle that is compared on live tickets and answers nobody."
    )
    shadow_sample: float = Field(1.0, ge=0, le=1, description="Share of tickets that the shadow sees.")

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    log_requests: bool = Field(True, description="One JSON line per request, without any ticket text.")
    metrics_folder: Path | None = Field(
        None, description="Where workers share their metrics; empty = a temporary folder."
    )
    tracing: bool = Field(False, description="OpenTelemetry traces; needs the extra `tracing`.")

    @field_validator("feedback_url")
    @classmethod
    def _database(cls, value: str) -> str:
        if value == "off":
            return ""
        if value and not value.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("must be sqlite:///…, postgresql://… or off")
        if value in ("sqlite://", "sqlite:///"):
            raise ValueError("must name a file: sqlite:///feedback.db, or sqlite:////var/… for a whole path")
        if value:
            urlsplit(value)  # ValueError
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return value or f"sqlite:///{state / 'larkfield' / 'feedback.db'}"

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: str) -> str:
        origins = [origin.strip() for origin in value.split(",") if origin.strip()]
        if all(origin == "*" or re.fullmatch(r"https?://[^/\s]+", origin) for origin in origins):
            return value
        raise ValueError("must be origins as browsers name them, https://desk.example.org, or *")

    @field_validator("bundle")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.absolute()

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def refuse_unprotected(self) -> None:
        """Raise ValueError when others could call the service and no key is asked for."""
        keyed = bool(self.api_keys.get_secret_value().strip(", ")) or self.api_keys_file is not None
        if self.loopback or keyed or self.allow_no_keys:
            return
        raise ValueError(
            f"host {self.host} can be reached from other machines and no API key is set: set "
            "LARKFIELD_API_KEYS or LARKFIELD_API_KEYS_FILE, or say LARKFIELD_ALLOW_NO_KEYS=true"
        )

    def refuse_unusable(self) -> None:
        """Raise ValueError where a file or folder that a setting names cannot be used."""
        try:
            name = "API_KEYS_FILE"
            Keys(self.api_keys, self.api_keys_file)
            name = "ADMIN_KEY_FILE"
            Keys(self.admin_key, self.admin_key_file)
            name = "METRICS_FOLDER"
            if self.metrics_folder is not None:
                self.metrics_folder.mkdir(parents=True, exist_ok=True)
                (self.metrics_folder / ".writable").touch()
                (self.metrics_folder / ".writable").unlink(missing_ok=True)
        except OSError as error:
            raise ValueError(f"LARKFIELD_{name} cannot be used: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"LARKFIELD_{name} cannot be used: it is not UTF-8") from None


def misspelt(environment: Iterable[str]) -> list[str]:
    """A sentence for each variable that looks like a setting and is none."""
    prefix, known = "LARKFIELD_", [name.upper() for name in Settings.model_fields]
    sentences = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(prefix)
        if variable.upper().startswith(prefix) and name not in (*known, *_READ_ELSEWHERE):
            near = difflib.get_close_matches(name, known, 1)
            sentences.append(f"{variable} is no setting" + (f"; is {prefix}{near[0]} meant?" if near else ""))
    return sentences


def table() -> str:
    """The settings as a Markdown list: variable, default, meaning; lines under 120 characters."""
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if name == "bundle":
            default = "models/larkfield"
        shown = (
            "" if default in (None, "") else str(default).lower() if isinstance(default, bool) else default
        )
        entry = f"- `LARKFIELD_{name.upper()}` ({shown or 'empty'}): {field.description}"
        lines += textwrap.wrap(
            entry, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Print the list, or write it between `<!-- settings -->` and `<!-- /settings -->` of a Markdown file."""
    if not arguments:
        print(table())
        return
    page = Path(arguments[0])
    begin, end = "<!-- settings -->\n", "<!-- /settings -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(head + begin + table() + "\n" + end + rest.partition(end)[2], encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
