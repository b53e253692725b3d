"""What the widgets of the noise nodes choose."""

from __future__ import annotations

from dataclasses import dataclass

from .assignment import COSTS, DOT
from .groups import GROUPINGS
from .nearest import CLOSED, FORMS, check_k
from .solvers import SOLVERS

OFF, ASSIGN, POOL, NEAREST = MODES = ("off", "assign", "pool", "nearest")


@dataclass(frozen=True)
class Settings:
    """How noise is paired with pictures; raises ValueError for choices that there are not."""

    mode: str = ASSIGN
    cost: str = DOT
    solver: str = "auto"
    pool_size: int = 256
    turn: int = 0
    k: float = 4.0
    form: str = CLOSED
    grouping: str = "ignore"
    labels: str = ""
    penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("mode", self.mode, MODES),
            ("cost", self.cost, COSTS),
            ("solver", self.solver, SOLVERS),
            ("form", self.form, FORMS),
            ("grouping", self.grouping, GROUPINGS),
        ):
            if value not in known:
                raise ValueError(f"There is no {name} {value}: choose one of {', '.join(known)}.")
        if self.mode == NEAREST:
            check_k(self.k, self.form)
