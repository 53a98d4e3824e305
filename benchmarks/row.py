"""One measured figure, with the bound it is held to and how busy the machine was."""

import json
import os
from dataclasses import dataclass, field

NOISY_LOAD = 0.75  # other load per core beyond which a figure is marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    value: float
    unit: str
    bound: float | None = None  # the figure must not be above it; None: shown for comparison only
    beside: dict[str, float | str] = field(default_factory=dict)  # what it was measured next to
    load: float = field(default_factory=lambda: os.getloadavg()[0] / (os.cpu_count() or 1))

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return "-"
        return "ok" if self.value <= self.bound else "MISSED"

    @property
    def noisy(self) -> bool:
        return self.load > NOISY_LOAD

    def line(self) -> str:
        """The row as one line of JSON."""
        return json.dumps(
            {
                "name": self.name,
                "value": round(self.value, 4),
                "unit": self.unit,
                "bound": self.bound,
                "verdict": self.verdict,
                "beside": self.beside,
                "load_per_core": round(self.load, 2),
                "noisy": self.noisy,
            }
        )


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0 to 1) of them lie; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
