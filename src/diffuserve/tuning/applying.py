"""A worker starts with what tuning has found for its model, where nothing else was asked for."""

import logging
from dataclasses import asdict, replace

from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.tuning.kept import load_tuning, tuning_path

log = logging.getLogger(__name__)

_OF_ENGINE = ("num_threads", "token_budget", "max_batch_size")


def with_tuning(config: EngineProcessConfig) -> EngineProcessConfig:
    """Return the configuration with the kept options; explicit ones stay, and another machine has none."""
    fit_path = config.engine.cost_fit_path
    tuning = load_tuning(tuning_path(fit_path)) if config.tuned and fit_path is not None else None
    if tuning is None or fit_path is None:
        return config
    if difference := tuning.other_machine():
        log.warning(
            "%s: what was tuned is ignored, for %s; run diffuserve tune again", config.model, difference
        )
        return config
    log.info("%s: tuned for %s of %s: %s", config.model, tuning.slo, tuning.workload, tuning.options)
    found = asdict(tuning.options)
    given = {name: found[name] for name in _OF_ENGINE if getattr(config.engine, name) is None}
    engine = replace(config.engine, **given)
    if config.dtype is not None or tuning.options.dtype is None:
        return replace(config, engine=engine)
    engine = replace(engine, cost_fit_path=fit_path.with_name(tuning.cost_fit))
    return replace(config, dtype=tuning.options.dtype, engine=engine)
