"""A server of the S3 API, in this process."""

import itertools
from datetime import timedelta
from types import TracebackType
from typing import Any

from obstore.store import S3Store

from diffuserve.storage.bucket import BucketArtifactStore

_NUMBERS = itertools.count()


class S3Server:
    """Listens within a `with` block. `client` is boto3's, to inspect buckets."""

    def __enter__(self) -> "S3Server":
        import boto3  # here: few tests need a bucket, and all import this module
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop()

    def create_bucket(self) -> str:
        """Create a bucket with a new name, and return the name."""
        name = f"images-{next(_NUMBERS)}"
        self.client.create_bucket(Bucket=name)
        return name

    def store(self, bucket: str, prefix: str) -> BucketArtifactStore:
        """Return a store of the keys under `prefix`."""
        return bucket_at(self.url, bucket, prefix)


def bucket_at(
    endpoint: str, bucket: str, prefix: str | None = None, max_retries: int = 1, seconds: float = 30.0
) -> BucketArtifactStore:
    """Return a store of a bucket at any address, even one without a server.

    `seconds` is the read timeout of each attempt.
    """
    return BucketArtifactStore(
        S3Store(
            bucket,
            prefix=prefix,
            endpoint=endpoint,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
            checksum_algorithm="SHA256",
            client_options={"allow_http": True, "read_timeout": timedelta(seconds=seconds)},
            retry_config={"max_retries": max_retries},
        ),
        f"s3://{bucket}/{prefix or ''}".rstrip("/"),
    )
