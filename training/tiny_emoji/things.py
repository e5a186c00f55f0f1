"""Things that can be drawn, and their names: chosen from the published names and tags by rules."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emoji_packages import NAMES, members

STYLES = ("3d", "flat")
_FACES, _NATURE, _FOOD, _TRAVEL, _ACTIVITIES, _OBJECTS = 0, 3, 4, 5, 6, 7
_GROUPS = (_FACES, _NATURE, _FOOD, _TRAVEL, _ACTIVITIES, _OBJECTS)
_EMOTION = 15
_LOOKING_ALIKE = range(11)
_MAX_FACES = 4
"""Of each subgroup of faces, which look much alike."""
_LEFT_OUT = re.compile(
    r"""\b(
    oncoming|waxing|waning|quarter|medium|low|squinting|tears?|raised|clinking|motorized|unlocked|service|guide
    |left|but|behind|new|without|done|moon.face|smiling.eyes|closed.eyes|open.mouth|with.hand|with.arrow|with.pen
    |with.key|with.slash|with.flash|increasing|decreasing|one-piece|two-hump|front-facing|wilted|falling|sign
    |map|globe|kaaba|statue|mount|church|mosque|temple|synagogue|shrine|beads|place.of.worship|love
    |medal|japanese|tokyo|thirty|o’clock|flags?|office|joker|mahjong|playing.cards|identification
    |banknote|yen|credit|receipt|cigarette|headstone|coffin|urn|microbe|dvd|card|calendar|page|station|rail|railway
    |mailbox|tray|e-mail|envelope|bookmark|wheelchair|cane|pager|fax|horns|ogre|goblin|poo|syringe
    |ox|buffalo|bison|suit|label|level|national|motorway|ballot|linked|vest|rugby|fog|foggy|wind.face|hammer.and
    |cricket.game|field.hockey|speaker|closed.umbrella|adhesive|alembic|hamsa|dotted|symbols|pouring|reminder
    |bikini|briefs|thong|kimono|sari|clothes|pistol|bomb|military|dagger|swords|drop.of.blood
    )\b""",
    re.VERBOSE,
)
_SAID_OTHERWISE = re.compile(
    r"""\b(
    and|the|with|for|from|not|nice|done|full|keep|this|that|what|will|want|good|great|true|young|style|serve
    |left|right|above|below|small|medium|large|tiny|little|big|huge|center|center|middle|top|bottom|upper|lower
    |side|corner|simple|plain|flat|bright|solid|bold|beautiful|wonderful|picture|photo|image|drawing|draw|show
    |background|backdrop|next|beside|over|under|beneath|red|green|blue|yellow|orange|purple|pink|brown|black|white
    |nothing|hurt|help|mad|sick|ass|drugs|gay|lesbian|queer|trans\w*|\w*(gbt|queer)\w*|vice|danger|russia|cancer
    )\b""",
    re.VERBOSE,
)
"""Words of a caption's other parts, and words that mean too much."""
_MAX_OWNERS = 2
_MAX_WORDS = 3
_SHORTEST = 2


@dataclass(frozen=True)
class Thing:
    """A thing that both sets hold a picture of. The first of its names is its own; others may mean it.

    `kind` numbers the things that go together, and `tags` are the words said of it and of others.
    """

    code: str
    names: tuple[str, ...]
    kind: int = 0
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


def load_things(packages: Path) -> tuple[Thing, ...]:
    """Return all things, so ordered that those learned first are as different as can be."""
    ((_, content),) = (file for file in members(NAMES, packages, "en") if file[0] == "data.json")
    return choose_things(json.loads(content))


def choose_things(entries: Iterable[dict[str, Any]]) -> tuple[Thing, ...]:
    """Return the things among emojibase's entries: one of each subgroup first, then the second of each."""
    ranks: dict[int, int] = defaultdict(int)
    ranked = []
    for entry in filter(_is_thing, entries):
        subgroup = entry["subgroup"]
        if ranks[subgroup] < (_MAX_FACES if subgroup in _LOOKING_ALIKE else math.inf):
            ranked.append((ranks[subgroup], subgroup, entry))
        ranks[subgroup] += 1
    ordered = [entry for _, _, entry in sorted(ranked, key=lambda item: item[:2])]
    return tuple(
        Thing(entry["hexcode"].lower(), names, entry["subgroup"], tuple(map(_plain, entry["tags"])))
        for entry, names in zip(ordered, _all_names(ordered), strict=True)
    )


def _is_thing(entry: dict[str, Any]) -> bool:
    """Leave out people, whose skins have tones, letters, flags, and of what looks alike all but one."""
    if entry.get("group") not in _GROUPS or "skins" in entry or entry.get("version", 99) > 15:
        return False
    if entry["group"] == _FACES and entry["subgroup"] == _EMOTION:
        return False
    return not _LEFT_OUT.search(entry["label"].lower())


def _all_names(entries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return each thing's own name, and those tags that hardly any other thing shares."""
    own = {_plain(entry["label"]) for entry in entries}
    owners: dict[str, list[int]] = defaultdict(list)
    for number, entry in sorted(enumerate(entries), key=lambda item: int(item[1]["order"])):
        for tag in map(_plain, entry["tags"] if entry["group"] != _FACES else ()):
            if tag not in own and _is_telling(tag):
                owners[tag].append(number)
    names = [[_plain(entry["label"])] for entry in entries]
    for tag, numbers in owners.items():
        if len(numbers) <= _MAX_OWNERS:
            names[numbers[0]].append(tag)
    return [tuple(found) for found in names]


def _is_telling(tag: str) -> bool:
    """Return whether the tag says what the thing is, and not how, or where, or what it may mean."""
    return len(tag) > _SHORTEST and len(tag.split()) <= _MAX_WORDS and not _SAID_OTHERWISE.search(tag)


def _plain(name: str) -> str:
    """Return the name in the letters that captions have."""
    letters = name.lower().replace("’", "'").replace("ñ", "n").replace("-", " ")
    return re.sub(r"[^a-z0-9' ]", "", letters)
