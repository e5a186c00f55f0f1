"""The words that models know, as their folders say. Importing this loads no torch."""

from diffuserve.domain.models.config import parse_config
from diffuserve.domain.models.known_words import KnownWords, Vocabulary
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.folder import VOCABULARY_FILE, ModelFolder, open_configs


def read_vocabulary(model: str) -> Vocabulary | None:
    """Return the words that a model's folder says it knows, if it does; of a bundled one beside the others'.

    Raise `InvalidModel`.
    """
    folder, bundled = open_configs(model), bundled_models()
    own = _known_words(folder)
    if own is None:
        return None
    if folder.path not in bundled.values():
        return Vocabulary(own)
    others = {name: _known_words(ModelFolder(path)) for name, path in bundled.items() if path != folder.path}
    return Vocabulary(own, {name: words for name, words in others.items() if words is not None})


def _known_words(folder: ModelFolder) -> KnownWords | None:
    if not (folder.path / VOCABULARY_FILE).is_file():
        return None
    return parse_config(KnownWords, folder.json(VOCABULARY_FILE), f"{folder.path}/{VOCABULARY_FILE}")
