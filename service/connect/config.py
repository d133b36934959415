"""The configuration: one TOML file that names the router, the desks, and who answers for which queue.

Secrets are never in the file: it names an environment variable (`token_env`) or a file (`token_file`).
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

Kind = Literal["rt", "zammad", "zendesk", "freshdesk", "jira", "otobo", "django-helpdesk", "generic"]
_SECRETS = ("token", "password", "secret", "webhook_secret", "api_key")
# A sweep finds what no webhook told of; for a desk without webhooks it is the only way.
SWEEP_SECONDS = 120.0


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the key and says what was expected."""


def _url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return value.rstrip("/")


def _names(value: Any) -> Any:
    """One name or several; the first is where tickets are moved to."""
    return [value] if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_url)]
Names = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_names), Field(min_length=1)]


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def secret(self, name: str) -> str | None:
        """A secret from its variable or file; None if the file names neither. ConfigError if it is empty."""
        variable, file = getattr(self, f"{name}_env"), getattr(self, f"{name}_file")
        if variable is not None and file is not None:
            raise ConfigError(f"{name}_env and {name}_file are both given; keep one")
        if variable is not None:
            value = os.environ.get(variable, "").strip()
            if not value:
                raise ConfigError(f"{name}_env: the environment variable {variable} is not set")
            return value
        if file is None:
            return None
        try:
            value = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(f"{name}_file: {file} cannot be read: {why}") from None
        if not value:
            raise ConfigError(f"{name}_file: {file} is empty")
        return value


class Router(Section):
    """Where the router is."""

    url: Url = "http://127.0.0.1:8000"
    page: Url | None = None  # its address for people, in notes; the same as `url` if not given
    api_key_env: str | None = None
    api_key_file: str | None = None


class Connect(Section):
    """Where webhooks are taken and events are kept."""

    host: str = "127.0.0.1"
    port: int = Field(8010, ge=0, le=65535)
    store: str = "connect.db"  # relative to the configuration file


class Write(Section):
    """A request of the generic desk; `{ticket}`, `{queue}`, `{note}` and `{team}` are filled in."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    path: str
    body: dict[str, Any]


class Search(Section):
    """Searches of the generic desk: addresses, and how their answers read."""

    changed: str  # {since} is 2026-12-01T08:00:00Z, {seconds} the same since 1970
    waiting: str | None = None  # asked for each entry queue, {queue}
    root: str | None = None  # where the list is in an answer
    ticket: str = "id"
    version: str | None = None
    next: str | None = None  # where the address of the next page is; without it there is one page


class Generic(Section):
    """How a generic desk's JSON reads: paths are names and numbers with dots between them."""

    ticket: str
    version: str | None = None  # without it, the same body is the same event
    subject: str | None = None
    text: str | None = None
    queue: str | None = None
    owner: str | None = None
    status: str | None = None
    open: list[str] = ["new", "open"]
    solved: list[str] = ["solved", "resolved", "closed"]
    read: str | None = None  # the path of a ticket, as /api/tickets/{ticket}; without it the webhook is read
    read_root: str | None = None  # where the ticket is in that answer
    note_text: str | None = None  # a list of notes in that answer
    headers: dict[str, str] = {}  # {token} is filled in
    move: Write | None = None
    note: Write | None = None
    search: Search | None = None

    @model_validator(mode="after")
    def _readable(self) -> Generic:
        if self.search is not None and self.read is None:
            raise ValueError("read: a desk with a search needs the address of a ticket")
        return self


class DeskConfig(Section):
    """One helpdesk."""

    kind: Kind
    url: Url
    mode: Literal["notes", "move"] = "notes"
    entry: list[str] = Field(min_length=1)  # queues where new tickets arrive; only from these they are moved
    teams: dict[str, Names]
    user: str | None = None
    token_env: str | None = None
    token_file: str | None = None
    webhook_secret_env: str | None = None
    webhook_secret_file: str | None = None
    sweep_seconds: float = Field(SWEEP_SECONDS, ge=0)  # 0: never
    project: str | None = None  # the key of a Jira project
    queue_field: str = Field("components", pattern=r"^(components|customfield_\d+)$")  # of Jira
    queue_ids: dict[str, int] = {}  # name -> number, for a desk whose API does not name its queues
    generic: Generic | None = None

    @field_validator("mode", mode="before")
    @classmethod
    def _mode(cls, value: Any) -> Any:
        if value not in ("notes", "move"):
            raise ValueError('must be "notes" (writes suggestions, moves nothing) or "move"')
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DeskConfig:
        owners: dict[str, str] = {}
        for team, queues in self.teams.items():
            for queue in queues:
                if queue in owners:
                    raise ValueError(f"teams: queue {queue!r} belongs to {owners[queue]!r} and to {team!r}")
                if queue in self.entry:
                    raise ValueError(f"teams: queue {queue!r} of {team!r} is also an entry queue")
                owners[queue] = team
        self._only("generic", "generic", self.generic is not None)
        self._only("project", "jira", bool(self.project))
        self._only("queue_ids", "django-helpdesk", bool(self.queue_ids))
        if self.queue_ids:
            self._numbered()
        return self

    def _only(self, key: str, kind: str, given: bool) -> None:
        """A key that one kind of desk needs and no other one reads."""
        if given != (self.kind == kind):
            raise ValueError(f"{key}: a desk of the kind {kind!r} needs this, and no other has it")

    def _numbered(self) -> None:
        """Every queue has one number of its own."""
        for queue in self.queues:
            if queue not in self.queue_ids:
                raise ValueError(f"queue_ids: the number of queue {queue!r} is missing")
        names: dict[int, str] = {}
        for queue, number in self.queue_ids.items():
            if number in names:
                raise ValueError(f"queue_ids: {names[number]!r} and {queue!r} have the same number {number}")
            names[number] = queue

    @property
    def queues(self) -> list[str]:
        """Every queue that the configuration names."""
        return [*self.entry, *(queue for queues in self.teams.values() for queue in queues)]

    def queue_of(self, team: str) -> str | None:
        """The queue that a team's tickets are moved to."""
        queues = self.teams.get(team)
        return queues[0] if queues else None

    def team_of(self, queue: str) -> str | None:
        """The team that solved a ticket of this queue; None for an entry queue.

        A queue that the table does not name is a team by its own name, which the router counts as unknown.
        """
        if queue in self.entry or not queue:
            return None
        return next((team for team, queues in self.teams.items() if queue in queues), queue)


class Config(Section):
    """The whole file."""

    router: Router = Router()
    connect: Connect = Connect()
    desks: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,49}$")], DeskConfig] = Field(
        min_length=1
    )


def load(path: Path) -> Config:
    """The configuration in a file; ConfigError says which key is wrong and what was expected."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {why}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        lines = [_sentence(item) for item in error.errors(include_url=False)]
        raise ConfigError(f"{path}:\n" + "\n".join(f"  {line}" for line in lines)) from None


def store_path(config: Config, path: Path) -> Path:
    """Where events are kept: relative to the folder of the configuration file."""
    return path.absolute().parent / config.connect.store


def _sentence(item: Any) -> str:
    """What is wrong with which key; no value is shown, because it may be a secret."""
    place = [str(part) for part in item["loc"] if part != "[key]"]
    key = ".".join(place)
    if item["type"] == "extra_forbidden":
        name = place[-1]
        if name in _SECRETS:
            return f"{key}: secrets are not written here; use {name}_env or {name}_file"
        model = _model_at(place[:-1])
        near = difflib.get_close_matches(name, model.model_fields, 1) if model else []
        return f"{key}: unknown key" + (f"; is {near[0]} meant?" if near else "")
    if item["type"] == "missing":
        return f"{key}: is missing"
    return f"{key}: {str(item['msg']).removeprefix('Value error, ')}"


def _model_at(place: list[str]) -> type[BaseModel] | None:
    if not place:
        return Config
    if place[0] == "desks" and len(place) == 2:
        return DeskConfig
    tables: dict[str, type[BaseModel]] = {
        "router": Router,
        "connect": Connect,
        "generic": Generic,
        "search": Search,
        "move": Write,
        "note": Write,
    }
    return tables.get(place[-1])
