"""One file a helpdesk; `opened` gives the desk that a configuration names."""

from __future__ import annotations

from importlib import import_module

from service.connect.config import DeskConfig
from service.connect.desk import Desk

# kind -> module; each has `open_desk(config, token)` and `SIGNATURE`, how its webhooks are signed.
MODULES = {
    "rt": "rt",
    "zammad": "zammad",
    "zendesk": "zendesk",
    "freshdesk": "freshdesk",
    "jira": "jira",
    "otobo": "otobo",
    "django-helpdesk": "django_helpdesk",
    "generic": "generic",
}


def opened(config: DeskConfig) -> Desk:
    """The desk of a configuration; ConfigError if its token is missing."""
    desk: Desk = _module(config).open_desk(config, config.secret("token") or "")
    return desk


def signature_of(config: DeskConfig) -> str:
    """How the desk's webhooks are signed: a key of `signatures.CHECKS`."""
    signature: str = _module(config).SIGNATURE
    return signature


def _module(config: DeskConfig):  # type: ignore[no-untyped-def]
    return import_module(f"service.connect.adapters.{MODULES[config.kind]}")
