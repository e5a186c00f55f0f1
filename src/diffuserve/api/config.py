"""Configuration of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diffuserve.api.outbound.address_policy import DEFAULT_PORTS
from diffuserve.domain.models.tiers import TierPolicy, Tiers
from diffuserve.jobs.policy.scaling import ScaleConfig
from diffuserve.options import option

API_VERSION = "v1"
MIB = 1 << 20


class DoorName(StrEnum):
    """Server of others whose API this one speaks as well, if its operator opens that door."""

    A1111 = "a1111"
    COMFYUI = "comfyui"
    FAL = "fal"


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """Limits and timing of the API; every `_seconds` field is a duration in seconds.

    `auth=False` opens every route to everyone, whether there are keys or not; without it the server is open
    until there is a key. While it is open only `own_hosts` and loopback are accepted as its names.
    `api_docs` serves `/docs` and `/openapi.json`.
    `max_file_bytes` limits a file that a worker uploads, `max_batch_bytes` a batch as JSON lines,
    `max_lines_bytes` a file of them,
    `max_body_bytes` every other body, `max_tenant_upload_bytes` all batches of a tenant that are not stored
    yet. The body of a batch or of an uploaded image must arrive within `upload_seconds` and, after the first
    `upload_grace_seconds`, at `min_upload_bytes_per_second`. An image that a request names by its URL must
    arrive within `input_url_seconds`.
    Webhooks are sent to public addresses and to `webhook_allowed_networks`, on `webhook_allowed_ports` only;
    after a rotation the old secret signs for `webhook_overlap_seconds` more. `poll_seconds` is the interval
    of reads that do not wait for a message of the bus, which may be lost. `commit` is that of the source
    code, where it is known. Jobs of sounds are refused unless it `lets_sounds_out`. `own_adapters` are
    names of adapters that workers know beside those of the store, and `bundled_adapters` those that ship
    with a model, by its name.
    """

    public_api_url: str | None = option(
        None, "Beginning of the URLs in responses; by default the address of the request."
    )
    public_base_url: str | None = option(
        None, "URL at which everyone can fetch finished files; by default their URLs are signed."
    )
    auth: bool = True
    own_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = option(
        (),
        'Origins of web pages of other sites that may use this server (CORS): ["https://app.example.com"].',
    )
    public_metrics: bool = option(
        False, "Serve /metrics to everyone, not only to keys with the role monitor or operator."
    )
    api_docs: bool = True
    doors: str | None = option(
        None,
        "Doors to open for programs that were written for other servers, with commas between: "
        "a1111,comfyui,fal.",
    )
    default_model: str | None = option(
        None, "Model of a job that names none; by default the only one served."
    )
    tiers: Mapping[str, Tiers] = option(
        default_factory=dict,
        help="Allowed steps and sizes, by model: "
        '{"flux-schnell": {"steps": [4, 8], "sizes": ["1024x1024"], "policy": "nearest"}}; by default all '
        "that a model can do.",
    )
    openai_sizes: TierPolicy = option(
        TierPolicy.NEAREST,
        "What OpenAI's routes do with a size that the model does not draw, or has never learned: draw the "
        "nearest that it has (nearest), or refuse the request (refuse).",
    )
    model_aliases: Mapping[str, str] = option(
        default_factory=dict,
        help='Other names of models: {"gpt-image-1": "flux-schnell"}, as an option also '
        "gpt-image-1=flux-schnell; by default OpenAI's own names, for the only model that makes such things.",
    )
    max_body_bytes: int = option(MIB, "Largest body of a client's request, in bytes.", gt=0)
    max_file_bytes: int = 64 * MIB
    max_input_file_bytes: int = option(
        20 * MIB, "Largest image that a request may bring, in bytes of its file.", gt=0
    )
    input_file_retention_seconds: float = option(
        86_400.0, "Seconds that an uploaded image is kept, and longer while a job needs it.", gt=0
    )
    input_url_allowed_networks: tuple[str, ...] = option(
        (),
        'Networks beside public addresses from which the images of requests may be fetched: ["10.0.0.0/8"].',
    )
    input_url_allowed_ports: tuple[str, ...] = option(
        ("443",), 'Ports from which the images of requests may be fetched: [443, "8000-8999"].'
    )
    input_url_seconds: float = 20.0
    adapter_uploads: bool = option(
        False, "Let tenants upload adapters (LoRA) of their own, within their plans; others never see them."
    )
    max_adapter_bytes: int = option(
        2 << 30, "Largest adapter that a tenant may upload, in bytes of its file.", gt=0
    )
    own_adapters: tuple[str, ...] = ()
    bundled_adapters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_batch_bytes: int = 64 * MIB
    max_lines_bytes: int = 200_000_000
    max_tenant_upload_bytes: int = 256 * MIB
    upload_seconds: float = option(
        600.0, "Seconds within which the body of a batch, or an uploaded image, must arrive.", gt=0
    )
    upload_grace_seconds: float = 10.0
    min_upload_bytes_per_second: float = option(
        16_384.0,
        "Least rate at which it must arrive, after ten seconds; a lower one lets slow clients keep their "
        "files here for longer.",
        gt=0,
    )
    result_url_seconds: float = option(3_600.0, "Seconds that the URL of a result is valid.", gt=0)
    session_seconds: float = option(
        604_800.0,
        "Seconds after which someone signed in to the web page must sign in again, however often it was "
        "used.",
        gt=0,
    )
    upload_url_seconds: float = 300.0
    webhook_timeout_seconds: float = option(20.0, "Timeout of a webhook's receiver, in seconds.", gt=0)
    webhook_overlap_seconds: float = 86_400.0
    webhook_allowed_networks: tuple[str, ...] = option(
        (), 'Networks that webhooks may reach beside public addresses: ["10.0.0.0/8"].'
    )
    webhook_allowed_ports: tuple[str, ...] = option(
        DEFAULT_PORTS, 'Ports that webhooks may reach, on every address: [443, "8000-8999"].'
    )
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    longest_wait_seconds: float = 60.0
    longest_poll_seconds: float = 25.0
    poll_seconds: float = 1.0
    ping_seconds: float = 15.0
    lets_sounds_out: bool = True
    version: str = "0"
    commit: str | None = None

    @property
    def open_doors(self) -> frozenset[DoorName]:
        """The doors that `doors` names. Raise `ValueError` for a name of none."""
        return doors_named(self.doors)

    @property
    def max_inline_bytes(self) -> int:
        """Bytes of files that a worker may send when it completes a job; base64 makes them longer."""
        return self.max_body_bytes // 2


def doors_named(text: str | None) -> frozenset[DoorName]:
    """Return the doors of a list such as `a1111,comfyui`. Raise `ValueError` for a name of none."""
    names = [name for part in (text or "").split(",") if (name := part.strip().lower())]
    if unknown := [name for name in names if name not in set(DoorName)]:
        raise ValueError(f"{unknown[0]!r} is no door; there are {', '.join(DoorName)}")
    return frozenset(map(DoorName, names))
