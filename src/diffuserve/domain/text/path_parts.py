"""Names that another process gave and that become part of a path here: types that only safe ones pass.

What arrives over the network is decoded by its types, so a field of one of these holds no separator, no
`..` and no control character. Every field of an answer that a path is made of has one.
"""

import re
from typing import Annotated

from pydantic import StringConstraints

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")

FileName = Annotated[str, StringConstraints(pattern=f"^{FILE_NAME.pattern}$")]
"""Name of a file, of which none is hidden."""
Id = Annotated[str, StringConstraints(pattern=f"^{ID.pattern}$")]
"""Id of a job, a worker and the like."""
Sha256 = Annotated[str, StringConstraints(pattern=f"^{SHA256.pattern}$")]
"""Hash of a file, or of a version of a model, whose folder it names."""
Suffix = Annotated[str, StringConstraints(pattern="^[a-z0-9]{1,8}$")]
"""End of a file's name, without the dot."""
