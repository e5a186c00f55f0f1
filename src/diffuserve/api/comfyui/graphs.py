"""A prompt of ComfyUI, which is a graph, and what it asks for. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diffuserve.api.comfyui.nodes import NODES, SAMPLERS, SCHEDULERS
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.request_bounds import MAX_SEED
from diffuserve.domain.requests.samplers import SPACED_SAMPLERS

_MAX_NODES = 200
_MAX_ID_CHARACTERS = 100
_MAX_LINKS = 150  # that are followed, each from within the one before
_MAX_LAST = 8  # nodes that show the images
_PRIMITIVES: Final = ("PrimitiveInt", "PrimitiveFloat", "PrimitiveString", "PrimitiveStringMultiline")
_ADAPTER: Final = {"name": "lora_name", "weight": "strength_model"}
_CONTROL: Final = {"weight": "strength", "start": "start_percent", "end": "end_percent"}
_ALIKE: Final = {"VAEDecodeTiled": "VAEDecode"}


@dataclass(eq=False)
class NodeFault(Exception):
    """Raised for a node that cannot be done; `kind` is ComfyUI's type of the error."""

    node_id: str
    class_type: str
    details: str
    input_name: str | None = None
    kind: str = "custom_validation_failed"


@dataclass
class GraphRequest:
    """What a graph asks for: values by the names of a job's fields, and the input that each came from."""

    sampler_id: str = ""
    last_ids: tuple[str, ...] = ()
    model: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    sampler: tuple[str, str] = ("euler", "normal")

    def say(self, name: str, value: Any, node_id: str, input_name: str) -> None:
        """Note the value of a field, and where it stands."""
        self.values[name], self.places[name] = value, (node_id, input_name)


class Graph:
    """The nodes of a prompt by id. Raise `NodeFault` if they are none."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self.nodes = nodes
        self._asked = GraphRequest()
        self._visits = 0
        self._field = "prompt"  # which of the two texts is being read
        for node_id, node in nodes.items():
            if len(nodes) > _MAX_NODES or len(node_id) > _MAX_ID_CHARACTERS:
                details = (
                    f"a prompt has at most {_MAX_NODES} nodes, with ids of {_MAX_ID_CHARACTERS} characters"
                )
                raise NodeFault(node_id[:_MAX_ID_CHARACTERS], "", details)
            if not node_id.isprintable():
                raise NodeFault("", "", f"{node_id!r} is no id of a node", kind="invalid_prompt")
            if not isinstance(node, dict) or not isinstance(node.get("inputs", {}), dict):
                raise NodeFault(node_id, "", "must be an object with class_type and inputs")

    def class_of(self, node_id: str) -> str:
        """Return the class of a node."""
        found = str(self.nodes[node_id].get("class_type"))[:_MAX_ID_CHARACTERS]
        return _ALIKE.get(found, found)

    def asked(self) -> GraphRequest:
        """Return what the graph asks for. Raise `NodeFault`."""
        last = [node_id for node_id in self.nodes if self._is_last(node_id)]
        for node_id in self.nodes:
            self._check_known(node_id)
        if not last:
            raise NodeFault("", "", "Prompt has no outputs", kind="prompt_no_outputs")
        if len(last) > _MAX_LAST:
            raise NodeFault(last[-1], self.class_of(last[-1]), f"at most {_MAX_LAST} nodes may show images")
        self._asked.last_ids = tuple(last)
        samplers = {self._sampler_behind(node_id) for node_id in last}
        if len(samplers) > 1:
            other = max(samplers)
            raise self.fault(
                other, "one KSampler draws all images of a prompt; send the others by themselves"
            )
        self._asked.sampler_id = samplers.pop()
        self._read_sampler(self._asked.sampler_id)
        return self._asked

    def fault(self, node_id: str, details: str, input_name: str | None = None, **more: str) -> NodeFault:
        """Return the refusal of a node."""
        return NodeFault(node_id, self.class_of(node_id), details, input_name, **more)

    def _is_last(self, node_id: str) -> bool:
        node = NODES.get(self.class_of(node_id))
        return node is not None and node.is_last

    def _check_known(self, node_id: str) -> None:
        name = self.class_of(node_id)
        if name not in NODES and name not in _PRIMITIVES and not name.endswith(("CLIPLoader", "VAELoader")):
            raise self.fault(
                node_id, f"{name} is not done here, only {', '.join(NODES)}", kind="missing_node_type"
            )

    def _linked(self, node_id: str, name: str) -> tuple[str, int]:
        """Return the node and the output that an input comes from."""
        link = self.nodes[node_id].get("inputs", {}).get(name)
        self._visits += 1
        if self._visits > _MAX_LINKS:
            details = f"the prompt goes round in a circle, or has more than {_MAX_LINKS} links"
            raise self.fault(node_id, details, name, kind="dependency_cycle")
        if isinstance(link, list) and len(link) == 2 and str(link[0]) in self.nodes:
            return str(link[0]), link[1] if isinstance(link[1], int) else 0
        raise self.fault(node_id, f"{name} is no link to another node", name, kind="required_input_missing")

    def _value(self, node_id: str, name: str) -> Any:
        value = self.nodes[node_id].get("inputs", {}).get(name)
        if isinstance(value, list):
            source, _ = self._linked(node_id, name)
            if self.class_of(source) not in _PRIMITIVES:
                raise self.fault(node_id, f"{name} must be a value, or come from a primitive", name)
            return self._value(source, "value")
        return value

    def _say(self, node_id: str, name: str, input_name: str) -> None:
        self._asked.say(name, self._value(node_id, input_name), node_id, input_name)

    def _behind(self, node_id: str, name: str, readers: Mapping[str, Callable[[str, int], None]]) -> None:
        """Read the node that an input comes from, by the reader of its class."""
        source, slot = self._linked(node_id, name)
        reader = readers.get(self.class_of(source))
        if reader is None:
            raise self.fault(node_id, f"{name} must come from {' or '.join(readers)}", name)
        reader(source, slot)

    def _sampler_behind(self, node_id: str) -> str:
        decoder, _ = self._linked(node_id, "images")
        if self.class_of(decoder) != "VAEDecode":
            raise self.fault(node_id, "images must come from VAEDecode", "images")
        sampler, _ = self._linked(decoder, "samples")
        if self.class_of(sampler) != "KSampler":
            raise self.fault(decoder, "samples must come from KSampler", "samples")
        return sampler

    def _read_sampler(self, node_id: str) -> None:
        asked = self._asked
        self._say(node_id, "num_inference_steps", "steps")
        self._say(node_id, "guidance_scale", "cfg")
        seed = self._value(node_id, "seed")
        asked.say("seed", seed & MAX_SEED if isinstance(seed, int) else seed, node_id, "seed")
        name, schedule = self._value(node_id, "sampler_name"), self._value(node_id, "scheduler")
        asked.sampler = (str(name), str(schedule))
        asked.places["sampler"] = (node_id, "sampler_name")
        self._behind(node_id, "model", self._models)
        self._behind(node_id, "latent_image", self._latents)
        if "image" in asked.values:
            self._say(node_id, "strength", "denoise")
        self._read_texts(node_id)

    def _read_texts(self, node_id: str) -> None:
        self._field = "prompt"
        self._behind(node_id, "positive", self._conditionings)
        self._field = "negative_prompt"
        self._behind(node_id, "negative", self._conditionings)
        if not self._asked.values.get("negative_prompt"):
            self._asked.values["negative_prompt"] = None

    @property
    def _models(self) -> Mapping[str, Callable[[str, int], None]]:
        return {
            "CheckpointLoaderSimple": lambda node_id, _: self._read_model(node_id, "ckpt_name"),
            "UNETLoader": lambda node_id, _: self._read_model(node_id, "unet_name"),
            "LoraLoader": self._read_adapter,
            "LoraLoaderModelOnly": self._read_adapter,
        }

    def _read_model(self, node_id: str, name: str) -> None:
        value = self._value(node_id, name)
        if not isinstance(value, str) or not 0 < len(value) <= 200:
            raise self.fault(node_id, f"{name} must name a model", name, kind="value_not_in_list")
        self._asked.model = value
        self._asked.places["model"] = (node_id, name)

    def _read_adapter(self, node_id: str, _slot: int) -> None:
        use = {name: self._value(node_id, key) for name, key in _ADAPTER.items()}
        self._asked.places["adapters"] = (node_id, "lora_name")
        self._asked.values.setdefault("adapters", []).insert(0, use)
        self._behind(node_id, "model", self._models)

    @property
    def _conditionings(self) -> Mapping[str, Callable[[str, int], None]]:
        return {
            "CLIPTextEncode": lambda node_id, _: self._say(node_id, self._field, "text"),
            "ConditioningZeroOut": lambda _node_id, _: None,
            "FluxGuidance": self._read_guidance,
            "ControlNetApplyAdvanced": self._read_control,
        }

    def _read_guidance(self, node_id: str, _slot: int) -> None:
        if self._field == "prompt":
            self._say(node_id, "guidance_scale", "guidance")
        self._behind(node_id, "conditioning", self._conditionings)

    def _read_control(self, node_id: str, slot: int) -> None:
        loader, _ = self._linked(node_id, "control_net")
        image, _ = self._linked(node_id, "image")
        if self.class_of(loader) != "ControlNetLoader" or self.class_of(image) != "LoadImage":
            raise self.fault(node_id, "takes control_net from ControlNetLoader, and image from LoadImage")
        if self._field == "prompt":
            use = {name: self._value(node_id, key) for name, key in _CONTROL.items()}
            use["name"] = self._value(loader, "control_net_name")
            use["image"] = image_id(self._value(image, "image"))
            self._asked.values.setdefault("controls", []).insert(0, use)
            self._asked.places["controls"] = (node_id, "control_net")
        self._behind(node_id, "negative" if slot else "positive", self._conditionings)

    @property
    def _latents(self) -> Mapping[str, Callable[[str, int], None]]:
        return {
            "EmptyLatentImage": self._read_size,
            "EmptySD3LatentImage": self._read_size,
            "VAEEncode": lambda node_id, _: self._behind(node_id, "pixels", self._images),
            "VAEEncodeForInpaint": self._read_inpainting,
            "SetLatentNoiseMask": self._read_masked,
            "RepeatLatentBatch": self._read_repeated,
        }

    def _read_size(self, node_id: str, _slot: int) -> None:
        self._say(node_id, "width", "width")
        self._say(node_id, "height", "height")
        self._say(node_id, "num_images", "batch_size")

    def _read_inpainting(self, node_id: str, _slot: int) -> None:
        self._behind(node_id, "pixels", self._images)
        self._behind(node_id, "mask", self._masks)

    def _read_masked(self, node_id: str, _slot: int) -> None:
        self._behind(node_id, "samples", self._latents)
        self._behind(node_id, "mask", self._masks)

    def _read_repeated(self, node_id: str, _slot: int) -> None:
        self._behind(node_id, "samples", self._latents)
        self._say(node_id, "num_images", "amount")

    @property
    def _images(self) -> Mapping[str, Callable[[str, int], None]]:
        return {"LoadImage": lambda node_id, _: self._say_image(node_id, "image", is_mask=False)}

    @property
    def _masks(self) -> Mapping[str, Callable[[str, int], None]]:
        return {
            "LoadImage": lambda node_id, _: self._say_image(node_id, "mask", is_mask=True),
            "LoadImageMask": lambda node_id, _: self._say_image(
                node_id, "mask", is_mask=self._value(node_id, "channel") == "alpha"
            ),
        }

    def _say_image(self, node_id: str, name: str, is_mask: bool) -> None:
        found = image_id(self._value(node_id, "image"), is_mask)
        if found is None:
            details = "has no transparency to fill in; upload it with some" if is_mask else "names no image"
            raise self.fault(node_id, f"image {details}", "image")
        self._asked.say(name, found, node_id, "image")


def image_name(file_id: str, mask_id: str | None) -> str:
    """Return the name of an uploaded image, which tells its file, and that of its transparency."""
    return f"{'+'.join(filter(None, (file_id, mask_id)))}.png"


def image_id(name: object, is_mask: bool = False) -> str | None:
    """Return the file that an image's name tells, or that of its transparency; `None` if there is none."""
    if not isinstance(name, str) or not name:
        return None
    plain = name.partition(" [")[0].rpartition("/")[2].removesuffix(".png")
    file_id, _, mask_id = plain.partition("+")
    return (mask_id if is_mask else file_id) or None


def with_sampler(asked: GraphRequest, graph: Graph, spec: ModelSpec) -> dict[str, Any]:
    """Return the values with the sampler of the model that the graph asks for. Raise `NodeFault`."""
    name, schedule = asked.sampler
    node_id, _ = asked.places["sampler"]
    if schedule not in SCHEDULERS:
        details = f"scheduler: {schedule!r} not in {list(SCHEDULERS)}"
        raise graph.fault(node_id, details, "scheduler", kind="value_not_in_list")
    found = [each for each in SAMPLERS.get(name, ()) if each in spec.samplers]
    if not found:
        known = [name for name, ours in SAMPLERS.items() if {*ours} & {*spec.samplers}]
        if name == "euler" and not known:  # the model has one sampler, whatever its name
            return asked.values
        raise graph.fault(
            node_id, f"sampler_name: {name!r} not in {known}", "sampler_name", kind="value_not_in_list"
        )
    sampler = found[0]
    if schedule == "karras":
        sampler = f"{sampler}_karras"
        if sampler not in spec.samplers:
            raise graph.fault(
                node_id, f"scheduler: {name} has no karras schedule", "scheduler", kind="value_not_in_list"
            )
    spaced = (
        {"timestep_spacing": "trailing"} if schedule == "sgm_uniform" and sampler in SPACED_SAMPLERS else {}
    )
    return {**asked.values, "sampler": sampler, **spaced}
