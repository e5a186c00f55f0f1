"""Ray Serve with a whole server in each replica, and as many replicas as the accepted work needs."""

import math
from typing import Any

from pydantic import BaseModel
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from diffuserve.integrations.asgi import ServerApp

MAX_REQUESTS = 1_000
"""Open requests of a replica: they wait in its queue, by its rules, and Serve holds back none of them."""
_OWN, _SHARED = "workers_needed", "workers_needed_in_all"
_TELL_SECONDS = 2.0
_LOOK_BACK_SECONDS = 3.0
_SHUTDOWN_MARGIN = 30.0  # seconds beside the worker's drain


def deployed(
    app: ServerApp,
    *,
    num_gpus: float = 1.0,
    min_replicas: int = 1,
    max_replicas: int = 1,
    downscale_delay_seconds: float = 300.0,
    **options: Any,
) -> serve.Application:
    """Return the application for `serve.run` and `serve run`; each replica runs `app` on `num_gpus`.

    Replicas are started at once, and ended after `downscale_delay_seconds` in which fewer would have
    sufficed. `options` are those of `serve.deployment`, in place of what is set here.
    """
    chosen = {
        "name": "diffuserve",
        "max_ongoing_requests": MAX_REQUESTS,
        "ray_actor_options": {"num_gpus": num_gpus},
        "autoscaling_config": _autoscaling(min_replicas, max_replicas, downscale_delay_seconds),
        "graceful_shutdown_timeout_s": app.settings.worker.drain_seconds + _SHUTDOWN_MARGIN,
    }
    return serve.deployment(**{**chosen, **options})(_replica(app)).bind()


class ApplicationArguments(BaseModel, extra="allow"):
    """What Serve's file or command line says of an application; all other names are settings.

    Those of replicas are as in `deployed`, which has their defaults, and `no_auth` as in `ServerApp`.
    """

    no_auth: bool = False
    num_gpus: float | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    downscale_delay_seconds: float | None = None


def application(arguments: ApplicationArguments) -> serve.Application:
    """Return what `deployed` does, for `serve run` and for the `import_path` of Serve's file.

    Raise `InvalidParams` for a name or a value that no setting has.
    """
    replicas = arguments.model_dump(exclude={"no_auth", *(arguments.model_extra or ())}, exclude_none=True)
    return deployed(ServerApp(no_auth=arguments.no_auth, **(arguments.model_extra or {})), **replicas)


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return how many replicas the accepted work needs: the policy that Serve's controller asks.

    Queues of their own add up, and of a queue that all share each replica tells the whole. While none tells
    anything, as without its database, nothing changes.
    """
    told = context.aggregated_metrics or {}
    own, shared = told.get(_OWN, {}), told.get(_SHARED, {})
    if not own and not shared:
        return context.target_num_replicas, {}
    return math.ceil(sum(own.values()) + max(shared.values(), default=0.0)), {}


def _autoscaling(least: int, most: int, downscale_delay_seconds: float) -> AutoscalingConfig:
    return AutoscalingConfig(
        min_replicas=least,
        max_replicas=most,
        upscale_delay_s=0.0,  # the figure is no noise: it is work that was accepted
        downscale_delay_s=downscale_delay_seconds,
        metrics_interval_s=_TELL_SECONDS,
        look_back_period_s=_LOOK_BACK_SECONDS,
        policy=AutoscalingPolicy(policy_function=f"{__name__}:{wanted_replicas.__name__}"),
    )


def _replica(app: ServerApp) -> Any:
    """Return the class of replicas, whose `app` is a copy of `app` in the replica's process."""
    number = _OWN if app.settings.database_url is None else _SHARED

    @serve.ingress(app)
    class Replica:
        app: ServerApp

        async def record_autoscaling_stats(self) -> dict[str, float]:
            return {number: await self.app.workers_needed()}

        def check_health(self) -> None:
            self.app.check_health()

    return Replica
