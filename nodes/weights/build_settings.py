"""How to build a space: see W2W Build Space."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .quantization import Storage
from .space import Form


class OnMismatch(StrEnum):
    """What happens to a file that does not fit: skipped and named in the report, or an error."""

    SKIP = "skip"
    ERROR = "error"


class MemberNorm(StrEnum):
    """At which |dW| members enter: as their files have it, or all at the median of them."""

    KEEP = "keep"
    EQUAL = "equal"


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """How to build: see W2W Build Space."""

    rank: int = 1
    components: int = 1000
    form: str = Form.SINGULAR_VALUES
    standardize: bool = True
    on_mismatch: str = OnMismatch.SKIP
    storage: str = Storage.FLOAT32
    energy: float = 0.99
    norm: str = MemberNorm.KEEP
