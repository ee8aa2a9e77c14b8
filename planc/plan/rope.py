"""The scalings of rotary embeddings that a plan can state in place of config.json's."""

from __future__ import annotations

from collections.abc import Mapping

from planc.plan.keys import key, keyed
from planc.plan.scalars import Float, Int
from planc.plan.types import Optional


@keyed
class LinearRope:
    """Positions are divided by `factor`."""

    factor: float = key(Float(1.0), doc="how many times more positions the model reaches", example="4")


@keyed
class DynamicRope:
    """NTK scaling for sequences longer than max_position_embeddings, by the length of a sequence."""

    factor: float = key(Float(1.0), doc="how many times more positions the model reaches", example="4")


@keyed
class YarnRope:
    """YaRN (arXiv:2309.00071): slow rotations are divided by `factor`, fast ones stay, and queries and keys
    are scaled."""

    factor: float = key(Float(1.0), doc="how many times more positions the model reaches", example="4")
    original_max_position_embeddings: int | None = key(
        Optional(Int(1)), unsaid=None, doc="positions before scaling; `none` for config.json's"
    )
    attention_factor: float | None = key(
        Optional(Float(0.0)), unsaid=None, doc="scales queries and keys; `none` for 0.1 ln(factor) + 1"
    )
    beta_fast: float = key(Float(0.0), unsaid=32.0, doc="rotations from which a frequency stays")
    beta_slow: float = key(Float(0.0), unsaid=1.0, doc="rotations up to which it is divided by `factor`")


@keyed
class Llama3Rope:
    """Llama 3.1's: as `yarn` by wavelength, without scaling queries and keys."""

    factor: float = key(Float(1.0), doc="how many times more positions the model reaches", example="8")
    original_max_position_embeddings: int | None = key(
        Optional(Int(1)), unsaid=None, doc="positions before scaling; `none` for config.json's"
    )
    low_freq_factor: float = key(
        Float(0.0), unsaid=1.0, doc="wavelengths over the original positions / this are divided by `factor`"
    )
    high_freq_factor: float = key(
        Float(0.0), unsaid=4.0, doc="wavelengths under the original positions / this stay"
    )


RopeScaling = LinearRope | DynamicRope | YarnRope | Llama3Rope

ROPES: Mapping[str, type[RopeScaling]] = {
    "linear": LinearRope,
    "dynamic": DynamicRope,
    "yarn": YarnRope,
    "llama3": Llama3Rope,
}
