"""Negotiation by the `Accept` header: a page for people, or JSON."""


def prefers_html(accept: str) -> bool:
    """Return whether an `Accept` header prefers HTML to JSON, as browsers do; `*/*` prefers neither."""
    weights = dict(map(_weight, accept.split(",")))
    return weights.get("text/html", 0.0) > weights.get("application/json", 0.0)


def _weight(media_range: str) -> tuple[str, float]:
    name, *parameters = media_range.lower().replace(" ", "").split(";")
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return name, float(parameter[2:])
            except ValueError:
                return name, 0.0
    return name, 1.0
