"""The choice of the deliveries that a sender starts next."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.jobs.webhook import Delivery, DeliveryStatus, WebhookEvent
from diffuserve.jobs.policy.webhook_turns import SendLimits, choose

LIMITS = SendLimits(total=6, per_tenant=3, per_host=4, per_endpoint=2)


def delivery(number: int, tenant: str = "ada", host: str = "h", path: str = "", due: float = 0.0) -> Delivery:
    return Delivery(
        id=f"msg_{number:04}",
        endpoint_id=f"{tenant}@{host}/{path}",
        tenant_id=tenant,
        host=host,
        type=WebhookEvent.JOB_SUCCEEDED,
        subject_id="job",
        base_url="",
        status=DeliveryStatus.PENDING,
        num_attempts=0,
        created_at=0.0,
        next_at=due,
    )


def ids(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(found.id.removeprefix("msg_")) for found in deliveries]


def test_tenants_take_turns_and_each_starts_with_what_waited_longest() -> None:
    eve = [delivery(number, "eve", due=number, path=str(number)) for number in range(5)]
    ada = [delivery(number, "ada", due=number) for number in (11, 10)]
    assert ids(choose([*eve, *ada], [], SendLimits(total=4))) == [0, 10, 1, 11]


def test_the_tenant_with_the_fewest_in_flight_goes_first() -> None:
    in_flight = [delivery(1, "eve"), delivery(2, "eve", path="x"), delivery(3, "bob")]
    waiting = [delivery(4, "eve", path="y"), delivery(5, "bob"), delivery(6, "ada", due=9.0)]
    assert ids(choose(waiting, in_flight, SendLimits(total=5))) == [6, 5]


def test_a_full_endpoint_lets_the_tenants_others_pass() -> None:
    waiting = [delivery(number) for number in range(4)] + [delivery(9, host="other", due=1.0)]
    assert ids(choose(waiting, [], LIMITS)) == [0, 1, 9]


def test_what_is_in_flight_is_not_started_again() -> None:
    assert choose([delivery(1)], [delivery(1)], LIMITS) == []


@st.composite
def _loads(draw: st.DrawFn) -> tuple[list[Delivery], list[Delivery]]:
    """Draw what waits, and what is in flight within the limits."""
    kinds = st.tuples(
        st.sampled_from(["ada", "bob", "eve"]),
        st.sampled_from("hij"),
        st.sampled_from("xyz"),
        st.integers(0, 9),
    )
    found = [
        delivery(number, tenant, host, path, float(due))
        for number, (tenant, host, path, due) in enumerate(draw(st.lists(kinds, max_size=30)))
    ]
    middle = draw(st.integers(0, len(found)))
    return found[:middle], choose(found[middle:], [], LIMITS)


def counts_of(deliveries: Sequence[Delivery]) -> list[Counter[str]]:
    return [
        Counter(found.tenant_id for found in deliveries),
        Counter(found.host for found in deliveries),
        Counter(found.endpoint_id for found in deliveries),
    ]


def has_room(candidate: Delivery, running: Sequence[Delivery]) -> bool:
    tenants, hosts, endpoints = counts_of(running)
    return (
        len(running) < LIMITS.total
        and tenants[candidate.tenant_id] < LIMITS.per_tenant
        and hosts[candidate.host] < LIMITS.per_host
        and endpoints[candidate.endpoint_id] < LIMITS.per_endpoint
    )


@given(_loads())
def test_no_limit_is_exceeded_and_no_room_is_left_unused(load: tuple[list[Delivery], list[Delivery]]) -> None:
    waiting, in_flight = load
    chosen = choose(waiting, in_flight, LIMITS)
    running = [*in_flight, *chosen]
    limits = (LIMITS.per_tenant, LIMITS.per_host, LIMITS.per_endpoint)
    for counts, limit in zip(counts_of(running), limits, strict=True):
        assert max(counts.values(), default=0) <= limit
    assert len(running) <= LIMITS.total
    left = [found for found in waiting if found not in chosen]
    assert not [found for found in left if has_room(found, running)]


@given(_loads())
def test_every_start_is_of_the_tenant_that_was_furthest_behind(
    load: tuple[list[Delivery], list[Delivery]],
) -> None:
    waiting, running = load
    for started in choose(waiting, running, LIMITS):
        in_flight = counts_of(running)[0]
        could_start = {
            found.tenant_id for found in waiting if found not in running and has_room(found, running)
        }
        assert in_flight[started.tenant_id] == min(in_flight[tenant] for tenant in could_start)
        running = [*running, started]


@given(_loads())
def test_messages_to_an_endpoint_keep_their_order(load: tuple[list[Delivery], list[Delivery]]) -> None:
    waiting, in_flight = load
    chosen = choose(waiting, in_flight, LIMITS)
    for endpoint_id in {found.endpoint_id for found in chosen}:
        own = [(found.next_at, found.id) for found in chosen if found.endpoint_id == endpoint_id]
        left = [(found.next_at, found.id) for found in waiting if found.endpoint_id == endpoint_id]
        assert own == sorted(left)[: len(own)]
