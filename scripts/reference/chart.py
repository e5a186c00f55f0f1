"""The table of the Helm chart's values."""

import json
from collections.abc import Mapping
from typing import Any

from chart.values import values
from reference.markdown import code, prose, table


def regions() -> Mapping[str, str]:
    """Return the table of values, in the order of values.yaml."""
    rows = [(code(value.name), _shown(value.default), prose(value.help)) for value in values()]
    return {"values": table(("value", "default", "meaning"), rows)}


def _shown(default: Any) -> str:
    return "none" if default in (None, "", [], {}) else code(json.dumps(default).strip('"'))
