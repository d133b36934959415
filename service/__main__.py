"""`python -m service`: start the router and print its address and an example request."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

try:
    from pydantic import ValidationError

    from service.connect.config import load
    from service.settings import SHIPPED_BUNDLE, Settings, misspelt
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error.name} is not installed; install what serving needs: pip install 'larkfield-router[serve]'"
    ) from None

# Fits the teams of the shipped bundle; other bundles may have other teams.
_EXAMPLE = "My card was charged twice for one order, please remove one charge"


def main() -> int:
    """Read flags and environment, check the settings, serve; exit status 2 if a setting cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--bundle", type=Path)
    flags = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    for name, value in flags.items():  # worker processes inherit the environment
        os.environ[f"LARKFIELD_{name.upper()}"] = str(value)
    try:
        settings = Settings()
        settings.refuse_unprotected()
        settings.refuse_unusable()
        if settings.connect is not None:
            load(settings.connect)  # ConfigError is a ValueError
    except ValidationError as error:
        for item in error.errors(include_input=False, include_url=False):
            name = ".".join(str(part) for part in item["loc"]).upper()
            print(f"LARKFIELD_{name}: {item['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for sentence in filter(None, (*misspelt(os.environ), settings.feedback_fault())):
        print(f"warning: {sentence}", file=sys.stderr)
    return _start(settings)


def _start(settings: Settings) -> int:
    # These imports are slow. They come after the checks, so that a wrong flag is reported at once.
    from service.connect.beside import connector_beside
    from service.observe import logs
    from service.observe.metrics import clear_gauges
    from service.process import supervisor, worker

    try:
        listener = worker.listen(settings.host, settings.port)
    except OSError as error:
        print(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}", file=sys.stderr)
        return 2
    greet(settings, listener.getsockname()[1])
    if settings.metrics_folder is not None:
        clear_gauges(settings.metrics_folder)
    writer = logs.configure(settings.log_level)
    try:
        with connector_beside(settings.connect) if settings.connect else nullcontext():
            if settings.workers == 1:
                return worker.serve(settings, listener, writer)
            return supervisor.Supervisor(settings, listener).run()
    finally:
        writer.close()


def greet(settings: Settings, port: int) -> None:
    """Print the address and an example request."""
    bare = settings.host.strip("[]")
    host = f"[{bare}]" if ":" in bare else bare
    address = f"http://{host}:{port}"
    key = "" if not settings.api_keys.get_secret_value() else " -H 'X-API-Key: …'"
    text = _EXAMPLE if settings.bundle == SHIPPED_BUNDLE else "Put one of your own tickets here"
    ticket = f'{{"text": "{text}"}}'
    print(f"Larkfield router on {address}, bundle {settings.bundle.name}. Try:\n")
    print(f"  curl {address}/route -H 'Content-Type: application/json'{key} -d '{ticket}'\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
