"""Fleets that are compared: a way to choose the number of workers, in a world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.simulate.followed_load.fleet import World
from benchmarks.simulate.followed_load.policies import (
    Fixed,
    Kubernetes,
    Policy,
    ScaledJob,
    average_value,
    utilization,
)
from diffuserve.jobs.policy.scaling import Floor, ScaleConfig

WORLD = World()
BASE = "ScaledObject"
RECOMMENDED = "ScaledJob"
_SHORT_GRACE = 30.0  # Kubernetes' own
_WARM = (0.0, 30.0)
ONE = (Floor(workers=1),)


@dataclass(frozen=True)
class Variant:
    """A policy, anew for each day, in a world; jobs come up to `burst` times as often in bursts."""

    policy: Callable[[], Policy]
    world: World = WORLD
    burst: float = 6.0


def hpa() -> Policy:
    """Return the autoscaler of `overlays/hpa`."""
    return Kubernetes(
        (average_value(5.0),),
        least=2,
        most=10,
        up_window=60.0,
        up_most=lambda _present: 2,
        up_period=60.0,
        down_most=1,
        down_period=120.0,
    )


def scaled_object() -> Policy:
    """Return the autoscaler of `overlays/keda`."""
    return Kubernetes((average_value(3.0), utilization(0.7)), least=1, most=20)


def scaled_job(floors: tuple[Floor, ...] = ONE, **config: float | bool) -> Policy:
    """Return the autoscaler of `overlays/scaledjob`, with settings of the control plane."""
    named = {f"scale_{name}": value for name, value in config.items()}
    return ScaledJob(ScaleConfig(**named), WORLD.load_seconds, floors)  # type: ignore[arg-type]


def variants() -> Mapping[str, Variant]:
    """Return all fleets by name; those of other nodes and bursts come in pairs, the ScaledObject first."""
    warm, small = replace(WORLD, node_seconds=_WARM), 3.0
    blunt = replace(WORLD, grace_seconds=_SHORT_GRACE)
    eager, patient = replace(WORLD, leave_seconds=30.0), replace(WORLD, leave_seconds=300.0)
    by_day = (*ONE, Floor(workers=12, start_hour=7, end_hour=19))
    return {
        "12 workers, always": Variant(Fixed, replace(WORLD, first_workers=12)),
        "HPA, 30 s to finish": Variant(hpa, blunt),
        "HPA": Variant(hpa),
        "ScaledObject, 30 s to finish": Variant(scaled_object, blunt),
        BASE: Variant(scaled_object),
        RECOMMENDED: Variant(scaled_job),
        "ScaledJob, leave after 30 s": Variant(scaled_job, eager),
        "ScaledJob, leave after 300 s": Variant(scaled_job, patient),
        "ScaledJob, target 300 s": Variant(partial(scaled_job, target_seconds=300.0)),
        "ScaledJob, busy 0.5": Variant(partial(scaled_job, useful_share=0.5)),
        "ScaledJob, busy 0.9, leave after 30 s": Variant(partial(scaled_job, useful_share=0.9), eager),
        "ScaledJob, predictive": Variant(partial(scaled_job, predictive=True)),
        "ScaledJob, predictive, leave after 30 s": Variant(partial(scaled_job, predictive=True), eager),
        "ScaledJob, floor of 12 by day": Variant(partial(scaled_job, by_day)),
        "ScaledJob, from zero": Variant(partial(scaled_job, ()), replace(WORLD, first_workers=0)),
        "ScaledJob, all on spot": Variant(scaled_job, replace(WORLD, is_spot=True)),
        "ScaledObject, warm nodes": Variant(scaled_object, warm),
        "ScaledJob, warm nodes": Variant(scaled_job, warm),
        "ScaledObject, bursts up to 3x": Variant(scaled_object, burst=small),
        "ScaledJob, bursts up to 3x": Variant(scaled_job, burst=small),
    }
