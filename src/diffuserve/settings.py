"""Settings from the environment, which is read here and nowhere else."""

import dataclasses
import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from platformdirs import user_cache_path
from pydantic import Field, ValidationError, create_model, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from diffuserve.agent.config import WorkerConfig
from diffuserve.api.config import ApiConfig, doors_named
from diffuserve.api.door.origins import check_origin
from diffuserve.api.outbound.address_policy import port_range
from diffuserve.api.server.connection_limits import ConnectionLimits
from diffuserve.api.source_commit import source_commit
from diffuserve.domain.addresses import is_loopback
from diffuserve.domain.backend_urls import LAST_PORT, checked_bus_url, checked_database_url
from diffuserve.domain.jobs.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.tiers import Tiers
from diffuserve.domain.tenant import DEFAULT_PLANS, Plan
from diffuserve.jobs.config import DAY, DEFAULT_RETENTION, StoreConfig
from diffuserve.media.file_names import slug
from diffuserve.models.bundled import bundled_adapters
from diffuserve.models.folders.names import full_name
from diffuserve.options import configured, option_fields, option_of
from diffuserve.private_files import Access
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.safety.sound_judges import lets_sounds_out
from diffuserve.setting_errors import PREFIX, invalid_setting, not_json
from diffuserve.telemetry.log_config import LogConfig
from diffuserve.version import __version__

LOOPBACK = "127.0.0.1"

SettingsType = TypeVar("SettingsType", bound=BaseSettings)


def _with_options_of(*configs: type) -> Callable[[type[SettingsType]], type[SettingsType]]:
    """Add a setting for every option that configurations declare, with its default, help and range."""

    def extend(settings: type[SettingsType]) -> type[SettingsType]:
        declared: dict[str, Any] = {
            name: (option.type, _setting(option))
            for config in configs
            for name, option in option_fields(config).items()
        }
        return create_model(
            settings.__name__,
            __base__=settings,
            __module__=settings.__module__,
            __doc__=settings.__doc__,
            **declared,
        )

    return extend


def _setting(declared: dataclasses.Field[Any]) -> Any:
    option = option_of(declared)
    has_factory = declared.default is dataclasses.MISSING
    default: dict[str, Any] = (
        {"default_factory": declared.default_factory} if has_factory else {"default": declared.default}
    )
    return Field(description=option.help, gt=option.gt, ge=option.ge, le=option.le, **default)


@_with_options_of(WorkerConfig, StoreConfig, ApiConfig, ConnectionLimits)
class Settings(BaseSettings):
    """Defaults of the command line; each is set by `DIFFUSERVE_` and its name in capitals.

    The options of a worker and its engine are declared in `WorkerConfig` and the dataclasses within it, those
    of the API in `ApiConfig`, of the job store in `StoreConfig`, the limits of connections in
    `ConnectionLimits`; `worker`, `engine_process`, `api_config`, `store_config` and `connection_limits` give
    them in their own types.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True)

    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("diffuserve"),
        description="Folder of fitted cost models and compiled blocks; by default in the user's cache "
        "folder.",
    )

    server: str = Field(default=f"http://{LOOPBACK}:8000", description="URL of the control plane.")
    api_key: str | None = Field(
        default=None,
        repr=False,
        description="API key; better in DIFFUSERVE_API_KEY, which other users cannot see.",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File with a worker's API key, read again when the key is refused: to rotate it.",
    )

    more_models: tuple[str, ...] = Field(
        default=(), description="Models that a worker serves beside `model`; more --model options give them."
    )

    host: str = Field(default=LOOPBACK, description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=LAST_PORT, description="Port to listen on; 0 takes a free one.")
    data_dir: Path = Field(
        default=Path("diffuserve-data"), description="Folder of the database and the files."
    )
    data_access: Access = Field(
        default=Access.OWNER,
        description="Who may read the data folder, and a folder of finished files: its owner, or its group "
        "too, such as a web server's.",
    )
    database_url: str | None = Field(
        default=None,
        repr=False,
        description="URL of the database, postgresql://USER@HOST/NAME; by default SQLite in the data folder.",
    )
    valkey_url: str | None = Field(
        default=None,
        repr=False,
        description="URL of Valkey or Redis, which several control planes share: valkey://HOST:PORT, or with "
        "valkeys, redis or rediss.",
    )
    artifacts_url: str | None = Field(
        default=None,
        description="Place of finished files: s3://bucket/prefix, gs://bucket/prefix or file:///folder; "
        "by default the data folder.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Names of this server, without ports, beside loopback, --host and the public URL: "
        '["gpu-box"]; no other is accepted while there are no API keys.',
    )
    api_docs: bool | None = Field(
        default=None,
        description="Serve /docs and /openapi.json; by default if --host is loopback.",
    )

    retention_seconds: Mapping[JobStatus, float] = Field(
        default_factory=dict,
        description="Seconds that a job and its files are kept, by final status; by default "
        f"{DEFAULT_RETENTION[JobStatus.SUCCEEDED] / DAY:g} days if it succeeded, else "
        f"{DEFAULT_RETENTION[JobStatus.FAILED] / DAY:g}.",
    )
    plans: Mapping[str, Plan] = Field(
        default_factory=dict, description="Plans beside free, standard and pro, or in their place, by name."
    )

    prompt_filter: str = Field(
        default="embedded",
        description="Prompt filter: embedded, policy (its rules alone), onnx:/folder, "
        "the URL of a moderation API, or none.",
    )
    prompt_policy: Path | None = Field(
        default=None, description="File of the policy; by default the one that comes with diffuserve."
    )
    prompt_filter_processes: int = Field(
        default_factory=lambda: max(1, min(4, (os.cpu_count() or 1) // 2)),
        ge=0,
        description="Processes that judge prompts; 0 judges within the server, which responds to nobody "
        "meanwhile; by default half of the cores, from 1 to 4.",
    )
    image_intake_processes: int = Field(
        default_factory=lambda: max(1, min(2, (os.cpu_count() or 1) // 4)),
        ge=1,
        description="Processes that read and judge the images of requests, each with up to 2 GiB of memory "
        "beside the filter's; by default a quarter of the cores, 1 or 2.",
    )
    prompt_filter_key: str | None = Field(
        default=None, repr=False, description="API key for the moderation API."
    )
    prompt_filter_timeout_seconds: float = Field(
        default=5, gt=0, description="Timeout of the moderation API, in seconds."
    )
    prompt_filter_down: Literal["fail_closed", "fail_open"] = Field(
        default="fail_closed",
        description="While the moderation API is unavailable: refuse every prompt, or apply the policy's "
        "rules alone.",
    )
    expander_url: str | None = Field(
        default=None, description="URL of an OpenAI-compatible chat API that expands prompts on request."
    )
    expander_model: str = Field(default="default", description="Language model of the chat API.")
    expander_key: str | None = Field(default=None, repr=False, description="API key for the chat API.")
    expander_timeout_seconds: float = Field(
        default=10,
        gt=0,
        description="Timeout of the chat API, in seconds; after it the prompt stays as it is.",
    )
    expander_system_prompt: str | None = Field(
        default=None, description="System prompt of the language model; by default a short one in English."
    )

    @classmethod
    def with_options(cls, **options: object) -> "Settings":
        """Return the options given on the command line; those that are `None` come from the environment.

        Raise `InvalidParams` for the first option or variable with a bad value.
        """
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            raise invalid_setting(error, cls.model_fields, given) from error
        except SettingsError as error:
            raise not_json(error) from error

    @field_validator(
        "server", "public_api_url", "public_base_url", "expander_url", "trace_endpoint", check_fields=False
    )
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        parts = urlsplit("http://unset" if url is None else url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # or out of range
            raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000")
        return url

    @field_validator(
        "webhook_allowed_networks", "input_url_allowed_networks", "trusted_proxies", check_fields=False
    )
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks

    @field_validator("allowed_origins", check_fields=False)
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            check_origin(origin)
        return origins

    @field_validator("doors", check_fields=False)
    @classmethod
    def _check_doors(cls, doors: str | None) -> str | None:
        doors_named(doors)
        return doors

    @field_validator("webhook_allowed_ports", "input_url_allowed_ports", mode="before", check_fields=False)
    @classmethod
    def _check_ports(cls, ports: Any) -> Any:
        """Accept a port as a number too."""
        if not isinstance(ports, list | tuple):
            return ports
        for text in (named := tuple(map(str, ports))):
            port_range(text)
        return named

    @field_validator("plans", mode="before")
    @classmethod
    def _name_plans(cls, plans: Any) -> Any:
        """Name each plan after its key, so that nobody has to repeat the name."""
        if not isinstance(plans, Mapping):
            return plans
        return {
            name: {"name": name, **plan} if isinstance(plan, Mapping) else plan
            for name, plan in plans.items()
        }

    @field_validator("plans")
    @classmethod
    def _check_plans(cls, plans: Mapping[str, Plan]) -> Mapping[str, Plan]:
        for plan in plans.values():
            plan.check()
        return plans

    @field_validator("tiers", check_fields=False)
    @classmethod
    def _check_tiers(cls, by_model: Mapping[str, Tiers]) -> Mapping[str, Tiers]:
        for tiers in by_model.values():
            tiers.check()
        return by_model

    @field_validator("retention_seconds")
    @classmethod
    def _check_retention(cls, seconds: Mapping[JobStatus, float]) -> Mapping[JobStatus, float]:
        for status, kept in seconds.items():
            if status not in FINAL_STATUSES or not kept > 0:
                raise ValueError(f"{status}: {kept}: give a final status and a positive time")
        return seconds

    @property
    def worker(self) -> WorkerConfig:
        """Configuration of a worker of this machine, as far as settings define it."""
        return configured(
            WorkerConfig,
            dict(self),
            server=self.server,
            api_key=self.api_key,
            api_key_file=self.api_key_file,
            engine_process=self.engine_process,
            further=tuple(map(self._engine_process_of, self.more_models)),
        )

    @property
    def engine_process(self) -> EngineProcessConfig:
        """Configuration of an engine, whose fitted cost model is kept in the cache folder."""
        return self._engine_process_of(self.model)  # type: ignore[attr-defined]

    def _engine_process_of(self, model: str) -> EngineProcessConfig:
        config = configured(EngineProcessConfig, {**dict(self), "model": model})
        gpus: int = self.gpus  # type: ignore[attr-defined]
        kept = (
            config.quantization,
            None if config.offload is Offload.NONE else f"offload-{config.offload}",
            config.parallel or (f"sequence={gpus}" if gpus > 1 else None),
        )
        path = cost_fit_path(self.cache_dir, full_name(config.model), config.device, config.dtype, *kept)
        engine = replace(config.engine, cost_fit_path=path)
        return replace(config, engine=engine, compiled_folder=self.cache_dir / "compiled")

    @property
    def store_config(self) -> StoreConfig:
        """Configuration of the job store. Raise `InvalidParams` if a lease is too short for the heartbeat."""
        return configured(
            StoreConfig,
            dict(self),
            retention_seconds={**DEFAULT_RETENTION, **self.retention_seconds},
            plans={**DEFAULT_PLANS, **self.plans},
        )

    def api_config(self, *, auth: bool) -> ApiConfig:
        return configured(
            ApiConfig,
            dict(self),
            auth=auth,
            own_hosts=(self.host, *self.allowed_hosts),
            api_docs=is_loopback(self.host) if self.api_docs is None else self.api_docs,
            lets_sounds_out=lets_sounds_out(
                self.image_filter,  # type: ignore[attr-defined]
                self.allow_unjudged_audio,  # type: ignore[attr-defined]
            ),
            own_adapters=tuple(self.adapter_files),  # type: ignore[attr-defined]
            bundled_adapters={model: tuple(files) for model, files in bundled_adapters().items()},
            version=__version__,
            commit=source_commit(),
        )

    def with_adapter_store(self) -> "Settings":
        """Return the settings of a server with its worker; by default adapters are in its data folder."""
        if self.engine_process.stored.adapters_url is not None:
            return self
        return self.model_copy(update={"adapter_store": self.data_dir.resolve().as_uri()})

    @property
    def logs(self) -> LogConfig:
        """Configuration of the log, the same for every process."""
        return configured(LogConfig, dict(self))

    @property
    def connection_limits(self) -> ConnectionLimits:
        """Limits of the connections of a server."""
        return configured(ConnectionLimits, dict(self))

    @property
    def files_url(self) -> str:
        """URL of the place of finished files; by default a folder in the data folder."""
        return self.artifacts_url or (self.data_dir.resolve() / "artifacts").as_uri()

    @property
    def store_url(self) -> str:
        """URL of the database; by default SQLite in the data folder. Raise `InvalidParams`."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir.resolve() / 'diffuserve.db'}"
        return checked_database_url(self.database_url)

    @property
    def database_file(self) -> Path | None:
        """File of the database; `None` if it is in none. Raise `InvalidParams`."""
        scheme, _, path = self.store_url.partition(":///")
        name = path.partition("?")[0]
        return Path(name) if scheme == "sqlite" and name not in ("", ":memory:") else None

    @property
    def bus_url(self) -> str | None:
        """URL of Valkey in the form of its client library; `None` without Valkey. Raise `InvalidParams`."""
        return None if self.valkey_url is None else checked_bus_url(self.valkey_url)


def cost_fit_path(
    cache_dir: Path, model: str, device: str | None, dtype: str | None, *kept: str | None
) -> Path:
    """Return the file of the cost model that was fitted for this model, device and dtype.

    `kept` says how its weights are kept: in which numbers, where, and shared by which devices.
    """
    name = "-".join([model, device or "default", dtype or "default", *filter(None, kept)])
    return cache_dir / "cost_fit" / f"{slug(name, limit=120)}.json"
