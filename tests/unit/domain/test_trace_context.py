"""Places in traces, as the header `traceparent` gives them."""

import pytest

from diffuserve.domain.trace_context import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("03", True)])
def test_a_header_is_read(flags: str, is_sampled: bool) -> None:
    assert TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}") == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize("is_sampled", [True, False])
def test_what_is_written_is_read_again(is_sampled: bool) -> None:
    context = TraceContext(TRACE, SPAN, is_sampled)
    assert TraceContext.parse(str(context)) == context
    assert len(str(context)) == 55


def test_a_later_version_may_say_more() -> None:
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-01-more") == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}x-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'m' * 300}",
    ],
)
def test_a_malformed_header_is_none(header: str | None) -> None:
    assert TraceContext.parse(header) is None
