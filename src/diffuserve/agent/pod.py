"""The pod that a worker runs in, as the API of Kubernetes knows it."""

import socket
import ssl
from pathlib import Path

import httpx

from diffuserve.domain.errors import ServerUnavailable

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a service account, which Kubernetes mounts: token, namespace and certificate authority."""
API = "https://kubernetes.default.svc"
_TIMEOUT_SECONDS = 5.0


class Pod:
    """Writes annotations of its own pod, named like the host, and nothing else."""

    def __init__(self, name: str | None = None, account: Path = ACCOUNT, api: str = API) -> None:
        """Tests give another name, folder and address."""
        self._name = name or socket.gethostname()
        self._account, self._api = account, api

    async def annotate(self, key: str, value: str) -> None:
        """Set an annotation. Raise `ServerUnavailable` if there is no account, or the API refuses."""
        try:
            # Tokens are replaced every hour: each request reads the present one.
            namespace, token = (self._read(name) for name in ("namespace", "token"))
            await self._patch(namespace, token, {"metadata": {"annotations": {key: value}}})
        except OSError as error:
            raise ServerUnavailable(f"no service account in {self._account} ({error})") from error
        except httpx.HTTPError as error:
            raise ServerUnavailable(f"pod {self._name} is not annotated ({error})") from error

    async def _patch(self, namespace: str, token: str, change: dict[str, object]) -> None:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/merge-patch+json"}
        url = f"{self._api}/api/v1/namespaces/{namespace}/pods/{self._name}"
        verified = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        async with httpx.AsyncClient(verify=verified, trust_env=False, timeout=_TIMEOUT_SECONDS) as client:
            response = await client.patch(url, json=change, headers=headers)
            response.raise_for_status()

    def _read(self, name: str) -> str:
        return (self._account / name).read_text(encoding="utf-8").strip()
