"""`python -m service.connect COMMAND --config connect.toml`: connects helpdesks to the router.

    check     try credentials and rights, show what would be done with the newest tickets, change nothing
    run       take webhooks, route, write back, report solved tickets (the default)
    backfill  route what waits in the entry queues now
    status    how many events wait, are done or are parked, and why
    replay    try parked events again

docs/helpdesks.md says for each helpdesk what to set up there.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

try:
    from service.connect.config import ConfigError, load
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error.name} is not installed; install the connector: pip install 'larkfield-router[connect]'"
    ) from None


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 means that the configuration cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m service.connect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = ["run", "check", "backfill", "status", "replay"]
    parser.add_argument("command", nargs="?", choices=commands, default="run")
    parser.add_argument("--config", type=Path, default=os.environ.get("LARKFIELD_CONNECT"))
    parser.add_argument("--desk", help="replay: only the events of this desk")
    chosen = parser.parse_args(arguments)
    if chosen.config is None:
        parser.error("--config is needed, or the variable LARKFIELD_CONNECT")
    try:
        return _run(chosen)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _run(chosen: argparse.Namespace) -> int:
    config = load(chosen.config)
    # Only now the slow imports, so that a wrong configuration is reported at once.
    try:
        from service.connect import commands, running
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise ConfigError("the connector needs httpx: pip install 'larkfield-router[client]'") from None
    from service.connect.events import StoreBusy
    from service.observe import logs

    with running.assembled(config, chosen.config) as parts:
        if chosen.command in ("status", "replay"):
            store = parts.store
            if chosen.command == "status":
                return commands.status(store, config.desks)
            return commands.replay(store, chosen.desk)
        if chosen.command == "check":
            return commands.check(parts)
        if chosen.command == "backfill":
            return commands.backfill(parts)
        writer = logs.configure("info")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs the address of every call
        try:
            return running.run(parts)
        except StoreBusy as error:
            print(error, file=sys.stderr)
            return 2
        finally:
            writer.close()


if __name__ == "__main__":
    sys.exit(main())
