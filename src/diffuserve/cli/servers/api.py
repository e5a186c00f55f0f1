"""`diffuserve api`: only a control plane, to which workers elsewhere connect."""

import gc
from contextlib import ExitStack

from diffuserve.cli import options
from diffuserve.private_files import private_umask
from diffuserve.settings import Settings
from diffuserve.wiring.data_folder import locked, shared

EXAMPLES = """
Examples:

  diffuserve api

  diffuserve api --host 0.0.0.0 --database-url postgresql://diffuserve@db/diffuserve
"""


@options.takes_settings(
    *("host", "port", "doors", "data_dir", "database_url", "valkey_url", "prompt_filter"),
    *("image_filter", "allow_unjudged_audio", "tiers", "model_aliases"),
    *options.LOG_OPTIONS,
    *options.TRACE_OPTIONS,
)
def api(settings: Settings, no_auth: options.NoAuth = False) -> None:
    """Run the control plane: jobs, API and queue. Needs no GPU and no torch.

    Without API keys it listens on this machine only. On PostgreSQL any number may run at a time.
    Its address goes to stdout, on one line, once it accepts requests.
    """
    gc.disable()  # until it listens: imported modules stay, and scanning them takes long
    from diffuserve.cli.servers.event_loop import run
    from diffuserve.cli.servers.server import run_api
    from diffuserve.telemetry.logs import configure_logs

    configure_logs(settings.logs)
    with ExitStack() as stack:
        stack.enter_context(private_umask(settings.data_access))
        hold = locked if settings.database_url is None else shared
        stack.enter_context(hold(settings.data_dir, settings.data_access))
        run(run_api(settings, no_auth))
