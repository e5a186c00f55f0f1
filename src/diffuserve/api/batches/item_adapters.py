"""Adapters that the items of a batch name."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

from diffuserve.api.batches.item_parser import BatchItemParser
from diffuserve.api.http.field_errors import validation_error
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.params import GenerationParams


async def with_adapters(
    names: AdapterNames, parser: BatchItemParser, numbers: Collection[int]
) -> BatchItemParser:
    """Return the parser with the digests of the adapters that the items of these numbers name.

    Raise `RequestValidationError`, which names the item, for an adapter that its job cannot have.
    """
    digests: dict[str, str | None] = {}
    for number in numbers:
        await asyncio.sleep(0)
        params = GenerationParams.from_dict(parser.parse(number).input)
        for place, use in enumerate(params.adapters or ()):
            if use.name in digests:
                continue
            try:
                digests[use.name] = await names.digest(parser.tenant_id, place, use, parser.served.spec)
            except InvalidParams as error:
                location = (*parser.request.location(number), "input", *error.field.split("."))
                raise validation_error(location, error.remedy, input=error.value) from error
    return replace(parser, adapters=digests)
