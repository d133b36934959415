"""The settings of the service: environment variables `LARKFIELD_…` with defaults and descriptions.

`python -m service.settings` prints them; `python -m service.settings docs/serving.md` writes them into that
page.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import resource
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

# Variables with the same prefix that are not settings of the service: the kernel cache, the seed of the
# tests.
_READ_ELSEWHERE = ("CACHE", "SEED")
# Admission reserves 256 open files for the service itself; each connection needs one more.
FEWEST_OPEN_FILES = 512
SHIPPED_BUNDLE = Path(__file__).resolve().parent.parent / "models" / "larkfield"


class Settings(BaseSettings):
    """Settings from the environment; ValidationError if one is invalid."""

    model_config = SettingsConfigDict(
        env_prefix="LARKFIELD_", frozen=True, extra="ignore", allow_inf_nan=False
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(1, ge=1, le=256, description="Worker processes; use one per core.")
    bundle: Path = Field(SHIPPED_BUNDLE, description="Folder of the bundle to serve.", validate_default=True)
    precision: float | None = Field(
        None,
        ge=LOWEST_PRECISION,
        le=HIGHEST_PRECISION,
        description="Share of routed tickets that should be right; empty = as chosen in training.",
    )
    route_languages: str = Field(
        "",
        pattern=r"^[a-z, ]*$",
        description="Codes of transferred languages that are routed (fr,de); empty = they go to review.",
    )
    bundle_watch_seconds: float = Field(
        0,
        ge=0,
        description="Time between checks whether the bundle's folder changed; then reload. 0 = no checks.",
    )
    provider: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="ONNX Runtime provider; auto = CUDA if there is a device, otherwise the CPU.",
    )

    api_keys: SecretStr = Field(
        SecretStr(""), description="API keys, comma separated; empty = no key is required."
    )
    api_keys_file: Path | None = Field(
        None, description="File with one API key per line; reloaded when it changes, to rotate keys."
    )
    admin_key: SecretStr = Field(
        SecretStr(""), description="Key of POST /admin/reload; empty = the endpoint is disabled."
    )
    admin_key_file: Path | None = Field(
        None, description="File with the admin key; reloaded when it changes."
    )
    allow_no_keys: bool = Field(
        False, description="Allow a start without API keys on an address that other machines can reach."
    )
    metrics_need_key: bool = Field(False, description="Require an API key for /metrics.")
    cors_origins: str = Field("", description="Origins allowed by CORS, comma separated; empty = none.")

    max_body_bytes: int = Field(
        262_144,
        ge=1024,
        description="Largest request body, payloads of inline images (data URIs) not counted; a larger one "
        "gets 413 before it is fully read.",
    )
    max_body_with_images_bytes: int = Field(
        4_194_304, ge=1024, description="Largest body of a ticket with its inline images."
    )
    max_batch_tickets: int = Field(256, ge=1, description="Most tickets in one POST /route/batch.")
    max_batch_body_bytes: int = Field(8_388_608, ge=1024, description="Largest body of POST /route/batch.")
    max_bytes_in_flight: int = Field(
        67_108_864, ge=1024, description="Bytes of all bodies in flight, per worker; more get 503."
    )
    max_connections: int = Field(4096, ge=1, description="Open connections per worker; more get 503.")
    max_queue: int = Field(128, ge=1, description="Unanswered tickets per worker; more get 503.")
    max_explanations: int = Field(4, ge=1, description="Unanswered explanations per worker; more get 503.")
    deadline_seconds: float = Field(2.0, gt=0, description="Time to answer a ticket; after it, 504.")
    explain_deadline_seconds: float = Field(
        10.0, gt=0, description="Time to answer a ticket with explanation; after it, 504."
    )
    retry_after_seconds: int = Field(1, ge=1, description="Value of the Retry-After header of a 503.")

    batch_tokens: int = Field(
        0,
        ge=0,
        description="Most tokens of a batch, padding included; 0 = 512 on a CPU, 65536 on a GPU.",
    )
    batch_tickets: int = Field(0, ge=0, description="Most tickets of a batch; 0 = 16 on a CPU, 512 on a GPU.")
    inline_tokens: int = Field(
        160,
        ge=0,
        description="Most tokens of a batch on the event loop, padding included; longer tickets run in a "
        "separate thread.",
    )
    intra_op_threads: int = Field(1, ge=1, le=256, description="Threads of ONNX Runtime for one run.")

    header_timeout_seconds: float = Field(10.0, gt=0, description="Time for a client to send the headers.")
    body_timeout_seconds: float = Field(
        30.0, gt=0, description="Time for a client to send the body; on /route/stream, the longest pause."
    )
    write_timeout_seconds: float = Field(
        30.0, gt=0, description="Close the connection if the client does not read the answer for this long."
    )
    keep_alive_seconds: float = Field(
        65.0, gt=0, description="Close a connection that is idle for this long."
    )
    drain_seconds: float = Field(
        1.0,
        ge=0,
        description="Time between SIGTERM, when /readyz fails, and refusing new connections.",
    )
    shutdown_seconds: float = Field(
        20.0, gt=0, description="Longest wait for requests in flight at shutdown."
    )

    feedback_url: str = Field(
        "",
        validate_default=True,
        description="Database of decisions and feedback: sqlite:///… or postgresql://…; off = none. "
        "Default: feedback.db in the user's state folder (~/.local/state/larkfield).",
    )
    feedback_retention_days: float = Field(
        365, gt=0, description="Delete decisions and feedback that are older than this."
    )
    feedback_most_decisions: int = Field(
        1_000_000, ge=1000, description="Most decisions to keep; older ones are deleted."
    )
    feedback_store_text: bool = Field(
        False, description="Store the text of tickets, so that feedback can be used for training."
    )
    feedback_text_days: float = Field(30, gt=0, description="Delete stored text after this many days.")
    drift_window: int = Field(
        2000,
        ge=10,
        description="Drift and accuracy are computed over this many newest tickets of the served version.",
    )
    drift_least: int = Field(200, ge=1, description="Fewest tickets for which drift is computed.")
    drift_seconds: float = Field(15.0, gt=0, description="Time between two measurements of drift.")
    shadow_bundle: Path | None = Field(
        None, description="Bundle that also decides live tickets, for comparison; its answers are not sent."
    )
    shadow_sample: float = Field(1.0, ge=0, le=1, description="Share of tickets that the shadow decides.")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level to log."
    )
    log_requests: bool = Field(True, description="Log one JSON line per request, without ticket text.")
    metrics_folder: Path | None = Field(
        None, description="Folder for the metrics files of all workers; empty = a temporary folder."
    )
    connect: Path | None = Field(
        None,
        description="Configuration of the helpdesk connector, which then runs beside the service "
        "(docs/helpdesks.md).",
    )
    tracing: bool = Field(False, description="Send OpenTelemetry traces; needs the extra `tracing`.")

    @field_validator("feedback_url")
    @classmethod
    def _database(cls, value: str) -> str:
        if value == "off":
            return ""
        if value and not value.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("must be sqlite:///…, postgresql://… or off")
        if value in ("sqlite://", "sqlite:///"):
            raise ValueError("must name a file: sqlite:///feedback.db, or sqlite:////var/… (absolute path)")
        if value:
            urlsplit(value)  # ValueError
            return value
        try:
            state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        except RuntimeError:
            raise ValueError(
                "this user has no home folder for the database of feedback: set a file, such as "
                "sqlite:////var/lib/larkfield/feedback.db, or off"
            ) from None
        return f"sqlite:///{state / 'larkfield' / 'feedback.db'}"

    @field_validator("port", mode="before")
    @classmethod
    def _is_no_address(cls, value: object) -> object:
        if isinstance(value, str) and "://" in value:
            raise ValueError(
                f"{value} is an address, as Kubernetes sets for a service named larkfield: set a number such "
                "as 8000, or enableServiceLinks: false in the pod"
            )
        return value

    @field_validator("bundle", mode="before")
    @classmethod
    def _is_not_empty(cls, value: object) -> object:
        if isinstance(value, str) and not value.strip():
            raise ValueError("is empty: set the folder of a bundle, or unset it to serve the shipped one")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: str) -> str:
        origins = [origin.strip() for origin in value.split(",") if origin.strip()]
        if all(origin == "*" or re.fullmatch(r"https?://[^/\s]+", origin) for origin in origins):
            return value
        raise ValueError("must be origins such as https://desk.example.org, or *")

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
        """Raise ValueError if other machines could call the service without a key."""
        keyed = bool(self.api_keys.get_secret_value().strip(", ")) or self.api_keys_file is not None
        if self.loopback or keyed or self.allow_no_keys:
            return
        raise ValueError(
            f"host {self.host} can be reached from other machines and no API key is set: set "
            "LARKFIELD_API_KEYS or LARKFIELD_API_KEYS_FILE, or LARKFIELD_ALLOW_NO_KEYS=true"
        )

    def feedback_fault(self) -> str | None:
        """A sentence if the folder of the SQLite file cannot be made or written; otherwise None."""
        if not self.feedback_url.startswith("sqlite:///"):
            return None
        folder = Path(self.feedback_url.removeprefix("sqlite:///").partition("?")[0]).parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return None
            why = "Permission denied"
        except OSError as error:
            why = str(error.strerror)
        return (
            f"LARKFIELD_FEEDBACK_URL: the folder {folder} cannot be used ({why}); tickets are routed, but "
            "feedback gets 503: set a file in a folder that this user may write, or off"
        )

    def refuse_unusable(self) -> None:
        """Raise ValueError if a file or folder cannot be used, or too few files may be open."""
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # a worker raises its limit to this one
        if files != resource.RLIM_INFINITY and files < FEWEST_OPEN_FILES:
            raise ValueError(
                f"only {files} files may be open, and the service needs {FEWEST_OPEN_FILES}: raise the limit "
                "with `ulimit -n 4096`, LimitNOFILE (systemd) or --ulimit nofile (Docker)"
            )
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
    """A warning for each variable that has the prefix but is not a setting."""
    prefix, known = "LARKFIELD_", [name.upper() for name in Settings.model_fields]
    sentences = []
    for variable in sorted(environment):
        name = variable.upper().removeprefix(prefix)
        if variable.upper().startswith(prefix) and name not in (*known, *_READ_ELSEWHERE):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            sentences.append(f"{variable} is not a setting{hint}")
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
