"""`diffuserve api`: the control plane alone; workers elsewhere connect to it."""

from contextlib import ExitStack

from diffuserve.cli import options
from diffuserve.cli.data_folder import locked
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve api

  diffuserve api --host 0.0.0.0 --database-url postgresql://diffuserve@db/diffuserve
"""


def api(  # noqa: PLR0913 (a command has as many arguments as options)
    host: options.Host = None,
    port: options.Port = None,
    data_dir: options.DataDir = None,
    database_url: options.DatabaseUrl = None,
    valkey_url: options.ValkeyUrl = None,
    prompt_filter: options.PromptFilter = None,
    no_auth: options.NoAuth = False,
) -> None:
    """Run the control plane: jobs, API and queue. Needs no GPU and no torch.

    Without API keys it listens on this machine only. On PostgreSQL any number may run at a time.
    Its address goes to stdout, on one line, once it answers.
    """
    settings = Settings.with_options(
        host=host,
        port=port,
        data_dir=data_dir,
        database_url=database_url,
        valkey_url=valkey_url,
        prompt_filter=prompt_filter,
    )
    from diffuserve.cli.http_server import run
    from diffuserve.cli.logs import log_to_stderr
    from diffuserve.cli.server import run_api

    log_to_stderr()
    with ExitStack() as stack:
        if settings.database_url is None:
            stack.enter_context(locked(settings.data_dir))
        run(run_api(settings, no_auth))
