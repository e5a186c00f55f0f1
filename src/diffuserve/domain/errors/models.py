"""Errors of models and of the machines that run them."""

from diffuserve.domain.errors.base import DiffuserveError


class ModelNotFound(DiffuserveError, ValueError):
    """The model is no bundled one, folder, short name or hub id; its hub id has no commit; or it is
    gated.

    Remedy: the message lists similar names, and says where to accept the terms of a gated one.
    """

    code = "model_not_found"
    status = 404


class HubUnavailable(ModelNotFound):
    """A model is not on this machine, and the hub cannot be reached, or the disk is full.

    Remedy: try again, which continues the download; without a network pass a folder.
    """

    code = "hub_unavailable"


class ModelCacheFull(DiffuserveError):
    """The folder for models of the model store has no room: models in use fill it, or the disk is full.

    Remedy: raise --model-cache-bytes, free the disk, or give a folder on another one; what has arrived is
    kept.
    """

    code = "model_cache_full"


class InvalidModel(DiffuserveError, ValueError):
    """A folder is incomplete, truncated or of an unsupported kind, or has only pickled weights, needs
    code of its own, or has a config out of bounds.

    Remedy: the message names the file; "Load your own model" lists errors and remedies.
    """

    code = "invalid_model"


class InvalidAdapter(DiffuserveError, ValueError):
    """An adapter does not fit the model, has tensors of other shapes or numbers that are not finite, or is
    not among those that are loaded.

    Remedy: the message names the adapter and the tensor; use one that was trained for this model.
    """

    code = "invalid_adapter"


class AdapterNotFound(DiffuserveError, ValueError):
    """The adapter store has no such adapter, or no file of it any more.

    Remedy: the message lists similar names; `diffuserve adapters list` shows all.
    """

    code = "adapter_not_found"
    status = 404


class DeviceUnavailable(DiffuserveError, ValueError):
    """The device is not on this machine, or the dtype is unknown.

    Remedy: give `cpu` or `cuda[:n]`; `bfloat16`, `float16` or `float32`.
    """

    code = "device_unavailable"


class EngineClosed(DiffuserveError):
    """The engine was closed before the request finished, or is used afterwards.

    Remedy: load a new engine.
    """

    code = "engine_closed"
