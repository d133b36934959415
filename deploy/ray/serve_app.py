"""The router on Ray Serve: the same application, with a number of replicas that follows the load.

    serve run --app-dir deploy/ray serve_app:router     # the cluster that RAY_ADDRESS names, or this machine
    serve deploy deploy/ray/serve.yaml                  # permanently, see docs/operations.md

Set RAY_USAGE_STATS_ENABLED=0 when you start the cluster, or Ray sends usage reports. The replicas read the
same LARKFIELD_… variables from their environment. The machines of the cluster need the project installed, but
for `serve run` they do not need this file.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ray import cloudpickle, serve

REPLICAS = {
    "min_replicas": 1,
    "max_replicas": 8,
    # Tickets in flight per replica above which a replica is added; it answers one in about a millisecond.
    "target_ongoing_requests": 4,
    "upscale_delay_s": 5,
    "downscale_delay_s": 120,
}


def build() -> Any:
    """The ASGI application of a replica, called there; startup completes when the bundle is loaded."""
    from service.app import create_app
    from service.settings import Settings

    failed = asyncio.Event()
    app = create_app(Settings(), on_load_failure=failed.set)
    service = app.state.service

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        async def send_when_loaded(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete":
                while service.runtime is None and not failed.is_set():
                    await asyncio.sleep(0.02)
                if failed.is_set():
                    message = {"type": "lifespan.startup.failed", "message": "the bundle was not loaded"}
            await send(message)

        await app(scope, receive, send_when_loaded if scope["type"] == "lifespan" else send)

    return answering


# Send the functions above to the replicas by value, because they may not have this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
router = serve.deployment(
    serve.ingress(build)(),
    name="router",
    autoscaling_config=REPLICAS,
    max_ongoing_requests=64,
    ray_actor_options={"num_cpus": 1},
    graceful_shutdown_timeout_s=20,
).bind()
