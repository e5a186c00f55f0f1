"""Values within messages, of which long ones are shortened."""


def shortened(value: object, limit: int = 60) -> str:
    """Return a value as Python writes it, at most `limit` characters of it."""
    if isinstance(value, str) and value[:5].lower() == "data:":
        value = f"{value.partition(',')[0]},…"  # what it is, and nothing of the content
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
