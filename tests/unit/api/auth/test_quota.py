"""Headers that tell clients their quota."""

import pytest

from diffuserve.api.auth.quota import REQUESTS, quota_headers
from diffuserve.quotas.base import Allowance, Rate


@pytest.mark.parametrize(
    ("per_second", "debt", "policy", "left"),
    [
        (100, 0.01, "q=100;w=1", "r=99;t=1"),
        (100, 1.0, "q=100;w=1", "r=0;t=1"),
        (2.5, 0.4, "q=2;w=1", "r=1;t=1"),
        (0.5, 2.0, "q=1;w=2", "r=0;t=2"),
        (0.3, 3.3, "q=1;w=4", "r=0;t=4"),
        (10, 0.0, "q=10;w=1", "r=10;t=0"),
    ],
)
def test_the_headers_are_integers_and_never_overstate_the_quota(
    per_second: float, debt: float, policy: str, left: str
) -> None:
    headers = quota_headers(REQUESTS, Allowance(Rate(per_second), True, debt))
    assert headers == {"ratelimit-policy": f'"requests";{policy}', "ratelimit": f'"requests";{left}'}
