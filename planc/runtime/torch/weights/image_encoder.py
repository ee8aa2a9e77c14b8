"""The image encoder of a checkpoint, which no run trains: loaded as it is, and exported as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from transformers import PreTrainedModel

from planc.graph.ops import LoadImageEncoder
from planc.hub.names import model_folder
from planc.modeling.initialization import draw
from planc.modeling.language_part import ENCODER, image_encoder, is_language_part
from planc.modeling.placed_draws import Values
from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_names
from planc.runtime.ranks.reads import Reads
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import ImageEncoder
from planc.runtime.torch.weights.export_format import as_bytes
from planc.runtime.torch.weights.factory import config_in, on_meta
from planc.runtime.torch.weights.files import stored_views
from planc.runtime.torch.weights.fit import converted
from planc.runtime.torch.weights.views import View


def encoder_views(
    model: PreTrainedModel, folder: Path, *, strip: str | None, reads: Reads | None = None
) -> dict[str, View]:
    """The encoder's tensors in a directory, by their names in the whole of which `model` is the language
    part. None of other models, and of a directory without weights."""
    if not is_language_part(model) or not any((folder / name).is_file() for name in weight_names(folder)):
        return {}
    views = converted(model, stored_views(folder, reads=reads), strip=strip).encoder
    return {name: View(view.shape, view.fill, (name,)) for name, view in views.items()}


def encoder_on_meta(op: LoadImageEncoder, *, base: Path) -> PreTrainedModel:
    """The encoder in the op's dtype, without memory."""
    config = config_in(model_folder(op.path, base=base), None)
    return image_encoder(config, dtype=TORCH_DTYPES[op.dtype])


@agreed
def load_image_encoder(run: Run, op: LoadImageEncoder) -> ImageEncoder:
    """Read the encoder from the model's files. RunError if one of its tensors is not there, or misshapen."""
    folder, encoder = model_folder(op.path, base=run.paths.base), encoder_on_meta(op, base=run.paths.base)
    views = encoder_views(on_meta(config_in(folder, None), None), folder, strip=op.strip, reads=run.reads)
    buffers: dict[str, Values] = {}
    draw(encoder, seed=0, keep=buffers.__setitem__, of=lambda part: bool(part._buffers))
    encoder.to_empty(device=run.device)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            view = views.get(f"{ENCODER}.{name}")
            if view is None or view.shape != parameter.shape:
                fault = "has no" if view is None else "has another shape of"
                raise RunError(
                    f"{folder} {fault} {ENCODER}.{name}, of the image encoder",
                    help="use the files of a whole checkpoint, or train on text: `task = causal_lm`",
                )
            view.fill(parameter, view.whole)
        for name, buffer in encoder.named_buffers():
            buffers[name].fill(buffer, tuple(slice(0, size) for size in buffer.shape))
    run.observer.noted(f"image encoder: {op.num_parameters:_} parameters, whole on every rank, not trained")
    return ImageEncoder(encoder.eval().requires_grad_(False), _digest(encoder))


def _digest(encoder: PreTrainedModel) -> str:
    """A SHA-256 of the encoder's weights, in the dtype that they are computed in."""
    content = hashlib.sha256()
    for parameter in encoder.parameters():
        content.update(as_bytes(parameter.detach()))
    return content.hexdigest()
