"""The record of one learned task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from ..data.images import Preprocessing
from ..data.targets import TargetKind
from ..data.task import check_class_names, check_name
from ..documents import Count, Fraction, NonNegative, Sha256
from ..errors import DataError, renamed
from .analysis import LayerSpectrum, Target
from .checkpoints import Epoch, Score
from .metrics import ACCURACY


@dataclass(frozen=True, repr=False)
class TaskRecord:
    """The result of learning one task. Layers go by their dotted names; all values can be written as JSON."""

    name: str
    classes: Annotated[int, Field(ge=1, lt=2**31)]  # or labels, or values
    class_names: tuple[str, ...] | None
    score: Score  # of the committed network, on the validation data, by its metric; higher is better
    accuracy: Fraction | None  # the same, if the metric is accuracy
    digest: Sha256  # of every bit of the task's network
    widths: Mapping[str, Count]  # output channels of each layer in the task's network
    parameters: Count  # of the task's network, its head included
    size: NonNegative  # of all networks so far, as a fraction of the full backbone
    explained: Mapping[str, float] = field(default_factory=dict)  # share of the residual's variance, by core and new filters
    core_explained: Annotated[  # share of it by the core alone; `core_ratio` in files of version 0.1
        Mapping[str, float], Field(validation_alias=AliasChoices("core_explained", "core_ratio"))
    ] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)  # rows that the analysis of each layer is based on
    spectrum: Mapping[str, LayerSpectrum] = field(default_factory=dict)  # what the analysis saw in each layer
    used: Mapping[str, Count] = field(default_factory=dict)  # output channels of each layer that the tasks so far use
    full: tuple[str, ...] = ()  # layers that had no free channel left when the task began
    grown: bool = False  # whether the network was made larger for this task
    target: Target | None = None  # what its network was to reach, and what it did
    pictures: Preprocessing | None = None  # how pictures become inputs, where the task was learned from Images
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    history: tuple[Epoch, ...] = ()  # an entry per epoch
    target_kind: TargetKind = "classes"  # what the task predicts
    flat: bool = False  # whether it predicts one value for each example, without a dimension of its own
    metric: str = ACCURACY  # by which the network was judged

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.class_names is not None:
            check_class_names(self.class_names, self.name)
            if len(self.class_names) != self.classes:
                raise DataError(f"Task {self.name!r} has {self.classes} classes, but {len(self.class_names)} names for them.")

    @property
    def class_labels(self) -> tuple[str, ...]:
        """What the classes, labels or values are called: their numbers, where they have no names."""
        return self.class_names or tuple(map(str, range(self.classes)))

    core_ratio = renamed("core_ratio", "core_explained")

    def __repr__(self) -> str:
        return (
            f"<TaskRecord {self.name!r} {self.target_kind}={self.classes} {self.metric}={self.score:.4f} "
            f"parameters={self.parameters} size={self.size:.3f}>"
        )

    def _repr_html_(self) -> str:
        """How notebooks show the record: the layers of the task's network, with its new filters in another colour."""
        from .picture import show_record

        return show_record(self)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
