"""What the model declares that it knows, for warnings about other words (`domain/models/known_words.py`)."""

from collections import defaultdict
from collections.abc import Sequence

from pictures import vocabulary
from things import Thing

FILE = "vocabulary.json"
_MOST_NEAR = 3


def declared(things: Sequence[Thing]) -> dict[str, object]:
    """Return the names of all things by kind, other words, and for unknown ones names that are near."""
    groups = defaultdict[int, list[tuple[str, ...]]](list)
    for thing in things:
        groups[thing.kind].append(thing.names)
    words = set(vocabulary(things))
    named = {word for thing in things for name in thing.names for word in name.split()}
    return {
        "groups": list(groups.values()),
        "words": sorted(words - named),
        "near": {tag: names[:_MOST_NEAR] for tag, names in _near(things).items() if tag not in words},
    }


def _near(things: Sequence[Thing]) -> dict[str, list[str]]:
    near = defaultdict[str, list[str]](list)
    for thing in things:
        for tag in thing.tags:
            if tag.isalpha():  # one word
                near[tag].append(thing.name)
    return near
