"""Parsing of the items of a batch into jobs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from diffuserve.api.batches.body_parser import BatchRequest
from diffuserve.api.batches.request_bodies import BatchItem
from diffuserve.api.http.field_errors import MAX_SHOWN_ERRORS, nested_errors, validation_error
from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.api.submit.draft import drafted, requested_params
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.input_file import InputFile
from diffuserve.domain.jobs.job import NewJob
from diffuserve.domain.requests.adapter_use import with_digests
from diffuserve.domain.requests.image_fields import mode_of
from diffuserve.domain.requests.input_image import ImageInput
from diffuserve.domain.requests.params import IMAGE_FIELDS
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.reads.operations import OfferedModel

_ITEMS_PER_TURN = 4  # parsed before other requests get the event loop


@dataclass(frozen=True)
class CheckedItems:
    """Items that were found valid: their predicted device-seconds, and which ones have something."""

    cost_seconds: float
    with_images: Sequence[int]
    with_adapters: Sequence[int]
    exact: Sequence[int]


def input_key(field: str, name: str) -> tuple[str, str]:
    """Return what stands for an image that items name: a digest, if it comes with its name."""
    is_data = name[:5].lower() == "data:"
    return field, hashlib.sha256(name.encode()).hexdigest() if is_data else name


@dataclass(frozen=True)
class BatchItemParser:
    """Parses the items of one batch into jobs, anew each time: they would fill the memory.

    `models` are all that are served, which refusals name. `inputs` are the files that items name, by
    `input_key`, once they are known; until then jobs have the names in their place. `adapters` are the
    digests of adapters by name, once they are known.
    """

    request: BatchRequest
    served: OfferedModel
    plan: Plan
    tenant_id: str
    models: Mapping[str, OfferedModel] = field(default_factory=dict)
    inputs: Mapping[tuple[str, str], InputFile] = field(default_factory=dict)
    adapters: Mapping[str, str | None] = field(default_factory=dict)

    def parse(self, number: int) -> NewJob:
        """Build the job of an item. Raise `RequestValidationError`, which names the item."""
        location, item = self.request.location(number), self.request.items[number]
        try:
            values = parsed_json(item, BatchItem) if isinstance(item, bytes) else item
            checked = BatchItem.model_validate(values)
            params = requested_params(self.request.options.kind, checked.input, self.served.spec)
            params = params.with_images(self._known)
            params = replace(params, adapters=with_digests(params.adapters, self.adapters))
            body = self._job_body(checked)
            new = drafted(self.tenant_id, body, params, self.served, self.plan, self.models).job
        except UnreadableJson as error:
            raise validation_error(location, str(error)) from error
        except ValidationError as error:
            raise nested_errors(location, error, BatchItem) from error
        except InvalidParams as error:
            is_option = error.field == "output_format"  # which does not suit this item
            place = (*location, *([] if is_option else ["input"]), error.field)
            raise validation_error(place, error.remedy, input=error.value) from error
        return replace(new, custom_id=checked.custom_id)

    async def parse_in_turns(self, start: int, end: int) -> AsyncIterator[tuple[int, NewJob]]:
        """Yield the jobs of the items from `start` up to `end`, and yield to other requests in between."""
        for number in range(start, end):
            if number % _ITEMS_PER_TURN == 0:
                await asyncio.sleep(0)
            yield number, self.parse(number)

    async def check_all(self) -> CheckedItems:
        """Check every item, and return what they are in all.

        Raise `RequestValidationError` with the first errors: invalid items, and equal custom ids.
        """
        errors: list[Any] = []
        cost_seconds, numbers = 0.0, dict[str, int]()
        with_images, with_adapters, exact = list[int](), list[int](), list[int]()
        for number in range(len(self.request.items)):
            if number % _ITEMS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                new = self.parse(number)
                self._check_custom_id(new, number, numbers)
                cost_seconds += new.cost_seconds
                with_images += [number] if IMAGE_FIELDS.keys() & new.input.keys() else []
                with_adapters += [number] if "adapters" in new.input else []
                exact += [number] if new.exact else []
            except RequestValidationError as error:
                errors += error.errors()
            if len(errors) >= MAX_SHOWN_ERRORS:
                break
        if errors:
            raise RequestValidationError(errors[:MAX_SHOWN_ERRORS])
        return CheckedItems(cost_seconds, with_images, with_adapters, exact)

    def _known(self, field: str, image: ImageInput) -> ImageInput:
        """Return the file that an item names, as its job does; the name itself if it is not known yet."""
        known = self.inputs.get(input_key(field, image)) if isinstance(image, str) else None
        return image if known is None else known.as_input(mode_of(field))

    def _check_custom_id(self, new: NewJob, number: int, numbers: dict[str, int]) -> None:
        first = numbers.setdefault(new.custom_id or "", number)
        if first != number:
            location = (*self.request.location(number), "custom_id")
            raise validation_error(location, f"is also the custom_id of number {first}")

    def _job_body(self, item: BatchItem) -> NewJobBody:
        """Combine the item and the options, both of which pydantic has validated already."""
        options = self.request.options
        return NewJobBody.model_construct(
            kind=options.kind,
            input=item.input,
            priority=options.priority,
            expires_in=options.expires_in,
            timeout=options.timeout,
            metadata=item.metadata,
            output_format=options.output_format,
            exact=item.exact,
            **vars(options.options),
        )
