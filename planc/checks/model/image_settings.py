"""Settings that training on images has no meaning for, or that have not been compared with one process."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Subject
from planc.checks.support.sharded_sizes import divides_sequence
from planc.hub.model_config import PATCH_SIZES, PREPROCESSOR, pixel_settings
from planc.hub.names import model_folder
from planc.inventory.schema import ImageEncoder
from planc.plan.conversations import ImageChat
from planc.plan.data import Packing, untransformed
from planc.plan.spec import Weights
from planc.plan.task import ImageTextToText
from planc.plan.train import CrossEntropy
from planc.tables import format_number

_Found = Iterator[tuple[str, str, str]]
"""The setting, what is wrong, and the help."""


def of_text_alone(subject: Subject) -> _Found:
    """Rows with images, for a task that shows the model none."""
    for path, source in subject.plan.data.sources():
        if isinstance(untransformed(source), ImageChat):
            help = "write `task = image_text_to_text()` in `model`, or `chat(...)` here"
            yield path, "a causal language model sees no images", help


def of_images(subject: Subject, task: ImageTextToText) -> _Found:
    """Settings that a plan of images can't have."""
    plan, encoder = subject.plan, subject.inventory.images
    assert encoder is not None, "a model of this task has one"
    reason = "no model that sees images has been compared with one process with it"
    if any(divides_sequence(assignment.use) for assignment in subject.bound.styles.values()):
        help = "keep the sequence whole: leave out `sequence_parallel` and `Shard(1)`"
        yield "tensor_parallel", reason, help
    for place, block in (("compile", plan.compile), ("balance", plan.balance)):
        if block is not None:
            yield place, reason, "remove the block"
    if not isinstance(plan.train.loss, CrossEntropy):
        yield "train.loss", reason, "remove it: the loss is the cross entropy of answers"
    if plan.model.weights is not Weights.PRETRAINED:
        text = "the encoder of images is not trained, and its weights are those of the model's files"
        yield (
            "model.weights" if "model.weights" in plan.spans else "model.task",
            text,
            "write `weights = pretrained`",
        )
    side = encoder.patch * encoder.merge
    unfit = [value for value in (task.height, task.width) if value % side]
    for value in unfit:
        near = max(side, round(value / side) * side)
        yield (
            "model.task",
            f"{value} pixels are not a multiple of {side}, the side of a token",
            f"write {near}",
        )
    shape = encoder.shape(height=task.height, width=task.width)
    if not unfit and shape.num_tokens >= plan.data.sequence_length:
        number = format_number(shape.num_tokens)
        text = f"an image of {task.height} x {task.width} pixels takes {number} tokens"
        help = f"write more than {number}, with room for the text, or smaller images in `task`"
        yield "data.sequence_length", text, help
    yield from _of_preprocessor(subject, encoder)
    yield from _of_rows(subject)


def _of_preprocessor(subject: Subject, encoder: ImageEncoder) -> _Found:
    """Settings that the model's directory lacks next to its weights, or has of another encoder."""
    if subject.base is None:
        return
    folder = model_folder(subject.plan.model.hf, base=subject.base)
    help = f"copy the {PREPROCESSOR} that the model was published with"
    if not (folder / PREPROCESSOR).is_file() and any(folder.glob("*.safetensors")):
        yield "model.hf", f"`{folder.name}` has no {PREPROCESSOR}, by which images are read", help
    settings = pixel_settings(subject.plan.model.hf, base=subject.base)
    for name, own in zip(PATCH_SIZES, (encoder.patch, encoder.merge, encoder.frames), strict=True):
        if (other := settings.get(name, own)) != own:
            yield "model.hf", f"its {PREPROCESSOR} has {other} for `{name}`, and its config.json {own}", help


def _of_rows(subject: Subject) -> _Found:
    data = subject.plan.data
    others = [path for path, source in data.sources() if not isinstance(source, ImageChat)]
    for path in others:
        yield path, "its rows have no images", "write `image_chat(...)`, of rows with an image each"
    # The packing follows from the source.
    if data.packing is not Packing.NONE and not others:
        yield "data.packing", "each sequence holds one image", "write `packing = none`, or leave it out"
