"""All kinds of configs."""

from __future__ import annotations

from planc.import_configs.kind import Kind
from planc.import_configs.kinds.accelerate import ACCELERATE
from planc.import_configs.kinds.automodel import AUTOMODEL
from planc.import_configs.kinds.axolotl import AXOLOTL
from planc.import_configs.kinds.deepspeed import DEEPSPEED
from planc.import_configs.kinds.torchtitan import TORCHTITAN
from planc.import_configs.kinds.training_arguments import TRAINING_ARGUMENTS
from planc.import_configs.kinds.trl import TRL

KINDS: tuple[Kind, ...] = (TORCHTITAN, ACCELERATE, DEEPSPEED, AUTOMODEL, AXOLOTL, TRAINING_ARGUMENTS, TRL)
BY_NAME = {kind.name: kind for kind in KINDS}
