"""Configuration of the API."""

from dataclasses import dataclass

from diffuserve.api.webhooks.address_policy import DEFAULT_PORTS

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """Limits and timing of the API; every `_seconds` field is a duration in seconds.

    `public_api_url` is the URL by which clients reach this server, if it differs from that of their
    requests. `public_base_url` serves finished files to everyone; without it their URLs are signed.
    `auth=False` opens every route to everyone, whether there are keys or not; without it the server is open
    until there is a key. While it is open only `own_hosts` and loopback are accepted as its names.
    `public_metrics` opens `/metrics` to everyone, and `api_docs` serves `/docs` and `/openapi.json`.
    `max_file_bytes` limits a file that a worker uploads, `max_batch_bytes` a batch as JSON lines,
    `max_body_bytes` every other body, `max_tenant_upload_bytes` all batches of a tenant that are not stored
    yet. The body of a batch must arrive within `upload_seconds` and, after the first `upload_grace_seconds`,
    at `min_upload_bytes_per_second`.
    Webhooks are sent to public addresses and to `webhook_allowed_networks`, on `webhook_allowed_ports` only;
    after a rotation the old secret signs for `webhook_overlap_seconds` more. `poll_seconds` is the interval
    of reads that do not wait for a message of the bus, which may be lost.
    """

    public_api_url: str | None = None
    public_base_url: str | None = None
    auth: bool = True
    own_hosts: tuple[str, ...] = ()
    public_metrics: bool = False
    api_docs: bool = True
    default_model: str | None = None
    max_body_bytes: int = MIB
    max_file_bytes: int = 64 * MIB
    max_batch_bytes: int = 64 * MIB
    max_tenant_upload_bytes: int = 256 * MIB
    upload_seconds: float = 600.0
    upload_grace_seconds: float = 10.0
    min_upload_bytes_per_second: float = 16_384.0
    result_url_seconds: float = 3_600.0
    upload_url_seconds: float = 300.0
    webhook_timeout_seconds: float = 20.0
    webhook_overlap_seconds: float = 86_400.0
    webhook_allowed_networks: tuple[str, ...] = ()
    webhook_allowed_ports: tuple[str, ...] = DEFAULT_PORTS
    longest_wait_seconds: float = 60.0
    longest_poll_seconds: float = 25.0
    poll_seconds: float = 1.0
    ping_seconds: float = 15.0
    version: str = "0"
