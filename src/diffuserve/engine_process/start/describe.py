"""The process that reads what the models of a worker are, for its agent, which imports no models.

It writes one line for each model: `ModelAnnounced`, or `EngineRefused` for one that nobody can load.
"""

import argparse
import sys

from diffuserve.domain.errors import DiffuserveError
from diffuserve.engine_process.agent_link import end_with_agent_alone
from diffuserve.engine_process.model.model_description import describe
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineRefused, ModelAnnounced, encode
from diffuserve.telemetry.logs import configure_logs


def main() -> None:
    arguments = parse_arguments()
    end_with_agent_alone()
    configs = [EngineProcessConfig.from_json(text) for text in arguments.config]
    configure_logs(configs[0].logs)
    for config in configs:
        sys.stdout.buffer.write(encode(announcement_of(config)))
    sys.stdout.flush()


def announcement_of(config: EngineProcessConfig) -> ModelAnnounced | EngineRefused:
    """Return what a model is, or why it cannot be served."""
    try:
        return describe(config)
    except DiffuserveError as error:
        return EngineRefused(reason=str(error))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Describes the models of a worker; started by its agent.")
    parser.add_argument("--config", required=True, action="append", help="JSON of EngineProcessConfig")
    return parser.parse_args()


if __name__ == "__main__":
    main()
