"""The environment's say, read here and nowhere else."""

import ipaddress
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from platformdirs import user_cache_path
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.tenant import DEFAULT_PLANS, Plan
from diffuserve.jobs.config import DEFAULT_RETENTION, StoreConfig
from diffuserve.version import __version__

LOOPBACK = "127.0.0.1"
_DATABASES = {"postgres": "postgresql", "postgresql": "postgresql", "sqlite": "sqlite"}
_BUSES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss"}
_BUS_URL = re.compile(
    r"(?P<scheme>\w+)://(?P<rest>([^@/]*@)?(\[[0-9a-fA-F:.]+\]|[^@/:?#]+)(:(?P<port>\d+))?(/\d*)?)"
)
_LAST_PORT = 65_535


class Settings(BaseSettings):
    """Defaults of the command line; each is set by `DIFFUSERVE_` and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="DIFFUSERVE_", frozen=True)

    model: str = Field(default="tiny-flux", description="bundled model, folder or hub id")
    device: str | None = Field(
        default=None, description="cpu or cuda[:n]; by default CUDA where there is one"
    )
    dtype: str | None = Field(
        default=None, description="bfloat16, float16 or float32; by default the checkpoint's"
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("diffuserve"), description="where fitted cost models are kept"
    )

    server: str = Field(
        default=f"http://{LOOPBACK}:8000", description="the control plane that commands and workers speak to"
    )
    api_key: str | None = Field(default=None, repr=False, description="the key shown to it")

    host: str = Field(default=LOOPBACK, description="the address a server listens on")
    port: int = Field(default=8000, ge=0, le=_LAST_PORT, description="its port; 0 takes a free one")
    data_dir: Path = Field(
        default=Path("diffuserve-data"), description="where a server keeps its database and its files"
    )
    database_url: str | None = Field(
        default=None, repr=False, description="postgresql://…; by default SQLite in the data folder"
    )
    valkey_url: str | None = Field(
        default=None, repr=False, description="valkey://…, which several control planes share"
    )
    artifacts_url: str | None = Field(
        default=None,
        description="where finished files go: s3://bucket/prefix, gs://bucket/prefix or file:///folder; "
        "by default into the data folder",
    )
    public_api_url: str | None = Field(
        default=None, description="the address in the URLs given out; by default the one that was asked"
    )
    public_base_url: str | None = Field(
        default=None, description="where everyone can fetch finished files; by default their URLs are signed"
    )
    result_url_seconds: float = Field(default=3_600, gt=0, description="how long a result's URL holds")
    default_model: str | None = Field(
        default=None, description="drawn with where a job names none; by default the only one served"
    )
    max_body_bytes: int = Field(default=1 << 20, gt=0, description="the largest body of a client's request")

    lease_seconds: float = Field(default=30, gt=0, description="silence after which a worker's jobs move on")
    heartbeat_seconds: float = Field(default=10, gt=0, description="how often a worker is heard")
    max_backlog_seconds: float = Field(
        default=StoreConfig.max_backlog_seconds, gt=0, description="queued device-seconds that are taken in"
    )
    audit_seconds: float = Field(
        default=StoreConfig.audit_seconds, gt=0, description="how long verdicts of the filters are kept"
    )
    retention_seconds: Mapping[JobStatus, float] = Field(
        default_factory=dict, description="by final status: how long a job and its files are kept"
    )
    plans: Mapping[str, Plan] = Field(
        default_factory=dict, description="by name: plans beside free, standard and pro, or in their place"
    )
    webhook_allowed_networks: tuple[str, ...] = Field(
        default=(), description="networks that webhooks may go to beside public addresses: 10.0.0.0/8"
    )
    webhook_timeout_seconds: float = Field(default=20, gt=0, description="how long a receiver may take")
    default_plan: str = Field(default=StoreConfig.default_plan, description="of a tenant that has none")

    prompt_filter: str = Field(
        default="embedded",
        description="what judges prompts: embedded, policy (its rules alone), onnx:/folder, "
        "the URL of a moderation API, or none",
    )
    prompt_policy: Path | None = Field(
        default=None, description="the policy's file; by default the one that comes with diffuserve"
    )
    prompt_filter_key: str | None = Field(default=None, repr=False, description="shown to a moderation API")
    prompt_filter_timeout_seconds: float = Field(default=5, gt=0, description="how long it may take")
    prompt_filter_down: Literal["fail_closed", "fail_open"] = Field(
        default="fail_closed",
        description="while it cannot be reached: refuse every prompt, or go by the policy's rules alone",
    )
    expander_url: str | None = Field(
        default=None, description="a chat API after OpenAI's, which makes prompts longer for jobs that ask"
    )
    expander_model: str = Field(default="default", description="the language model there")
    expander_key: str | None = Field(default=None, repr=False, description="shown to it")
    expander_timeout_seconds: float = Field(
        default=10, gt=0, description="after which the prompt is used as it is"
    )
    expander_system_prompt: str | None = Field(
        default=None, description="what the language model is told; by default in English"
    )
    image_filter: str = Field(
        default="opennsfw",
        description="what judges images: opennsfw, transformers:/folder, nudenet, or none",
    )
    image_rules: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict,
        description='by label: {"threshold": 0.8, "action": "block"}; by default the filter has its own',
    )
    file_metadata: bool = Field(default=True, description="whether files carry what they were drawn with")

    drain_seconds: float = Field(default=30, ge=0, description="what a stopping worker may take to finish")
    stall_seconds: float = Field(default=60, gt=0, description="time without a step after which it restarts")
    max_jobs: int = Field(default=32, ge=1, description="jobs that a worker holds at a time")

    @classmethod
    def with_options(cls, **options: object) -> "Settings":
        """What was given on the command line, and the environment's say for what was not (`None`)."""
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return cls(**given)

    @field_validator("server", "public_api_url", "public_base_url", "expander_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        parts = urlsplit("http://unset" if url is None else url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000")
        return url

    @field_validator("webhook_allowed_networks")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks

    @field_validator("plans", mode="before")
    @classmethod
    def _name_plans(cls, plans: Any) -> Any:
        """A plan's name is its key; saying it twice would be noise."""
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
            if not plan.weight > 0 or plan.max_running < 1 or plan.max_queued < 1:
                raise ValueError(f"plan {plan.name}: weight, max_running and max_queued must be positive")
            for limit in (plan.max_queued_seconds, plan.requests_per_second):
                if limit is not None and not 0 < limit < math.inf:
                    raise ValueError(f"plan {plan.name}: a limit must be positive, or null for none")
            if not plan.allows(plan.default_band):
                raise ValueError(f"plan {plan.name}: its default_band is above its highest_band")
        return plans

    @field_validator("retention_seconds")
    @classmethod
    def _check_retention(cls, seconds: Mapping[JobStatus, float]) -> Mapping[JobStatus, float]:
        for status, kept in seconds.items():
            if status not in FINAL_STATUSES or not kept > 0:
                raise ValueError(f"{status}: {kept}: give a final status and a positive time")
        return seconds

    @property
    def store_config(self) -> StoreConfig:
        """Raises `InvalidParams` where lease and heartbeat do not fit each other."""
        return StoreConfig(
            lease_seconds=self.lease_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
            max_backlog_seconds=self.max_backlog_seconds,
            retention_seconds={**DEFAULT_RETENTION, **self.retention_seconds},
            plans={**DEFAULT_PLANS, **self.plans},
            default_plan=self.default_plan,
            audit_seconds=self.audit_seconds,
        )

    def api_config(self, *, auth: bool) -> ApiConfig:
        return ApiConfig(
            auth=auth,
            public_api_url=self.public_api_url,
            public_base_url=self.public_base_url,
            default_model=self.default_model,
            max_body_bytes=self.max_body_bytes,
            result_url_seconds=self.result_url_seconds,
            webhook_allowed_networks=self.webhook_allowed_networks,
            webhook_timeout_seconds=self.webhook_timeout_seconds,
            version=__version__,
        )

    @property
    def files_url(self) -> str:
        """Where finished files go; a folder of the data folder by default."""
        return self.artifacts_url or (self.data_dir.resolve() / "artifacts").as_uri()

    @property
    def store_url(self) -> str:
        """The database; SQLite in the data folder by default."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir.resolve() / 'diffuserve.db'}"
        scheme, found, rest = self.database_url.partition("://")
        if not found or scheme not in _DATABASES:
            shown = scheme if found else "…"  # the rest may hold a password
            raise InvalidParams("database_url", shown, "must begin with postgresql:// or sqlite:///")
        return f"{_DATABASES[scheme]}://{rest}"

    @property
    def bus_url(self) -> str | None:
        """Valkey as its client library writes it. Raises `InvalidParams`."""
        if self.valkey_url is None:
            return None
        match = _BUS_URL.fullmatch(self.valkey_url)
        if match is None or match["scheme"] not in _BUSES or int(match["port"] or 0) > _LAST_PORT:
            remedy = "must be valkey://HOST:PORT/NUMBER, or begin with valkeys, redis or rediss"
            raise InvalidParams("valkey_url", "…", remedy)  # it may hold a password
        return f"{_BUSES[match['scheme']]}://{match['rest']}"
