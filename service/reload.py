"""Order a running service to switch bundles, from the command line.

    python -m service.reload --url http://127.0.0.1:8000 --bundle runs/new
    python -m service.reload --url http://127.0.0.1:8000 --previous

Both call `POST /admin/reload` with the key in LARKFIELD_ADMIN_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def main() -> int:
    """Order a reload from the command line."""
    parser = argparse.ArgumentParser(prog="python -m service.reload", description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--bundle", type=Path, help="the folder to serve from now on; default: the same again")
    what.add_argument("--previous", action="store_true", help="go back to the bundle served before")
    arguments = parser.parse_args()
    order: dict[str, Any] = {"previous": arguments.previous}
    if arguments.bundle:
        order["bundle"] = str(arguments.bundle.absolute())
    request = urllib.request.Request(
        arguments.url.rstrip("/") + "/admin/reload",
        json.dumps(order).encode(),
        {"content-type": "application/json", "x-api-key": os.environ.get("LARKFIELD_ADMIN_KEY", "")},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            print(json.dumps(json.load(response)))
    except urllib.error.HTTPError as error:
        print(json.load(error).get("detail", error.reason), file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{arguments.url} does not answer: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
