"""How the API answers; every time in seconds."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """`public_api_url` is what clients reach this server by, where that differs from what they ask for.

    `public_base_url` is where finished files are open to everyone; `None` signs their URLs instead.
    `auth=False` opens every route to everyone, whatever keys there are. `max_file_bytes` bounds one
    file that a worker uploads, `max_batch_bytes` a batch as JSON lines, `max_body_bytes` every other
    body. Webhooks go to public addresses and to `webhook_allowed_networks`; after a rotation the older
    secrets sign for `webhook_overlap_seconds` more.
    """

    public_api_url: str | None = None
    public_base_url: str | None = None
    auth: bool = True
    default_model: str | None = None
    max_body_bytes: int = MIB
    max_file_bytes: int = 64 * MIB
    max_batch_bytes: int = 64 * MIB
    result_url_seconds: float = 3_600.0
    upload_url_seconds: float = 300.0
    webhook_timeout_seconds: float = 20.0
    webhook_overlap_seconds: float = 86_400.0
    webhook_allowed_networks: tuple[str, ...] = ()
    longest_wait_seconds: float = 60.0
    longest_poll_seconds: float = 25.0
    look_seconds: float = 1.0
    ping_seconds: float = 15.0
    version: str = "0"
