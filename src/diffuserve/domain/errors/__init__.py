"""The errors that callers may want to handle, in one tree.

The first paragraph of a docstring says when the error is raised, one that begins with "Remedy:" what to do;
`docs/reference/errors.md` is made of them.
"""

from diffuserve.domain.errors.base import *  # noqa: F403
from diffuserve.domain.errors.models import *  # noqa: F403
from diffuserve.domain.errors.refusals import *  # noqa: F403
from diffuserve.domain.errors.requests import *  # noqa: F403
from diffuserve.domain.errors.resources import *  # noqa: F403
from diffuserve.domain.errors.service import *  # noqa: F403
