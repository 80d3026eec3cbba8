"""Pictures for the page: decode one, and classify it with every task."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from typing_extensions import NotRequired, TypedDict

from ..data.images import preprocess
from ..data.pictures import PIXELS, LargePictureError, open_picture, to_pixels
from ..learner import Learner
from ..learning.objective import ANSWERS
from ..structure.calling import list_tensors
from .open_inference import RequestError

Shape = tuple[int, ...]
TOP_CLASSES = 5  # that the page shows for each task

ClassAnswer = TypedDict("ClassAnswer", {"class": str, "share": float | None, "value": NotRequired[float]})


class TaskAnswer(TypedDict, total=False):
    """One task's answer: its most probable classes or labels, or its values, or the reason why it has none."""

    task: str
    answers: list[ClassAnswer]
    like: float | None  # probability that the picture belongs to this task; None without a signature
    problem: str


class PictureAnswer(TypedDict):
    """The answers of all tasks, and the task that the picture most probably belongs to."""

    tasks: list[TaskAnswer]
    likely: str | None


def list_shapes(learner: Learner) -> set[Shape]:
    """Return the shapes of pixels that the learner's tasks read."""
    return {tuple(record.pictures["pixels"]) for record in learner.records.values() if record.pictures is not None}


def decode(body: bytes, shapes: set[Shape]) -> tuple[tuple[int, int], dict[Shape, np.ndarray]]:
    """Decode a picture; return its width and height, and its pixels in each of the shapes."""
    try:
        with open_picture(io.BytesIO(body)) as picture:
            if not shapes:
                picture.load()  # a damaged picture is refused, even if no task reads it
            return picture.size, {shape: to_pixels(picture, shape)[None].copy() for shape in shapes}
    except LargePictureError:
        raise RequestError(f"The picture has more than {PIXELS:,} pixels. Send a smaller one.", 413) from None
    except Exception as error:  # decoders fail in many ways
        raise RequestError("This is not a picture that can be read, such as PNG, JPEG or WebP.", 415) from error


def classify(learner: Learner, pixels: Mapping[Shape, np.ndarray]) -> PictureAnswer:
    """Run every task on a picture, given its pixels in every shape that some task reads."""
    answers: list[TaskAnswer] = []
    task_scores: dict[str, Tensor] = {}
    accepted: list[str] = []
    for name, record in learner.records.items():
        image = None if record.pictures is None else pixels.get(tuple(record.pictures["pixels"]))
        if record.pictures is None or image is None:
            reason = "taught without spacecl.Images, so it is not known how to turn a picture into its inputs"
            answers.append({"task": name, "problem": reason})
            continue
        rows = preprocess(record.pictures, image).to(list_tensors(learner.example)[0].dtype)
        outputs = learner.logits(rows, name).float()
        if not bool(outputs.isfinite().all()):
            raise RequestError(f"Model {name!r}: the answer to this picture is not finite.", 422)
        expected = ANSWERS[record.target_kind].expect(outputs, 0.0)[0].tolist()
        named = list(zip(record.class_labels, expected))
        classes: list[ClassAnswer]
        if record.target_kind == "values":
            classes = [{"class": label, "share": None, "value": value} for label, value in named[:TOP_CLASSES]]
        else:
            named.sort(key=lambda pair: -pair[1])
            classes = [{"class": label, "share": share} for label, share in named[:TOP_CLASSES]]
        answers.append({"task": name, "answers": classes, "like": None})
        if learner.has_signature(name):
            task_scores[name] = learner.task_scores(rows, name)
            if bool(learner.accepts(rows, name)[0]):
                accepted.append(name)
    if task_scores:
        probability = dict(zip(task_scores, torch.cat(list(task_scores.values())).softmax(0).tolist()))
        for answer in answers:
            if answer["task"] in probability:
                answer["like"] = probability[answer["task"]]
    return {"tasks": answers, "likely": max(accepted, key=lambda name: float(task_scores[name]), default=None)}
