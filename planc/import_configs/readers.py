"""Readers of values: from a value as a file has it to the value that a plan gets.

A reader raises `Unread` with the reason for a value that a plan can't have.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from planc.hub.names import is_repository
from planc.import_configs.leaves import Value, written

FSDP_WORDS = (
    *("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload"),
    "auto_wrap",
)


class Unread(ValueError):
    """The reason that a value has no counterpart."""


class Idle(Unread):
    """The reason that a value needs none: it asks for what a plan does, or for what another file gives."""


class Automatic(Idle):
    """A value that the launching program fills in."""

    def __init__(self) -> None:
        super().__init__("`auto` is filled in by the launching program: a plan names the value")


_Meant = TypeVar("_Meant")
_MAX = 10**15
"""The largest whole number: beyond it a float would round."""


def number(value: Value) -> float:
    """A finite number; YAML reads `1e-8` as text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MAX:
        raise Unread(f"`{written(value)}` is too large")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _automatic(value) or Unread(f"`{written(value)}` is not a number")
    return float(value)


def _number_reader(is_right: Callable[[float], bool], fault: str) -> Callable[[Value], float]:
    def read(value: Value) -> float:
        given = number(value)
        if not is_right(given):
            raise Unread(f"`{written(value)}` {fault}")
        return given

    return read


def _whole_reader(least: int, fault: str) -> Callable[[Value], int]:
    read = _number_reader(lambda given: least <= given <= _MAX and given == int(given), fault)
    return lambda value: int(read(value))


count = _whole_reader(1, "is not a positive whole number")
whole = _whole_reader(0, "is not a whole number")
share = _number_reader(lambda given: 0 <= given <= 1, "is not between 0 and 1")
positive = _number_reader(lambda given: given > 0, "is not positive")
amount = _number_reader(lambda given: given >= 0, "is negative")


def rest_or_count(value: Value) -> int | None:
    """None for the rest of the devices, as torchtitan's -1 and Automodel's `none`."""
    if value in (-1, None) or (isinstance(value, str) and value.lower() in ("none", "auto", "null")):
        return None
    return count(value)


def clipping(value: Value) -> float | None:
    """The norm; None for what turns clipping off."""
    return None if value is None else amount(value) or None


_ON = ("true", "yes", "on")
_OFF = ("false", "no", "off", "none", "disabled", "")


def flag(value: Value) -> bool:
    """True or false, also as the words that configs have for them."""
    if isinstance(value, str) and value.lower() in (*_ON, *_OFF):
        return value.lower() in _ON
    if value is None:
        return False
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise _automatic(value) or Unread(f"`{written(value)}` is neither true nor false")


def pair(value: Value) -> tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise _automatic(value) or Unread(f"`{written(value)}` is not two numbers")
    return number(value[0]), number(value[1])


def text(value: Value) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unread(f"`{written(value)}` is not a name")
    if not value.strip().isprintable() or '"' in value:
        raise Unread(f"`{written(value)}` has characters that a plan's text can't have")
    return value.strip()


def train_on(value: Value) -> str:
    """The messages that are trained on: of a list of roles, or of a flag for the assistant's."""
    if value == ("assistant",) or value is True:
        return "answers"
    if value is False:
        return "all"
    raise Unread(f"a plan trains on the messages of the assistant, or on all, not on {written(value)}")


def roles(value: Value) -> str:
    """The word of `train_on`; without a list, the last message is trained on."""
    return "last_answer" if value is None else train_on(value)


def ends_of_turns(value: Value) -> str:
    """Whether the end of each turn that is trained on is trained on too."""
    if value in ("turn", None, "none"):
        return "true" if value == "turn" else "false"
    raise Unread(
        f"a plan trains on the ends of the turns that it trains on, or on none, not {written(value)}"
    )


def template_file(value: Value) -> str:
    """A template's file; a text with a template in it is not one."""
    if not isinstance(value, str) or "{" in value or not value.endswith((".jinja", ".jinja2", ".j2")):
        raise Unread(
            'a plan has the tokenizer\'s template, or a file: write `chat(..., template = "my.jinja")`'
        )
    return text(value)


def held_share(value: Value) -> float:
    """A share of the data that is held out; off with 0."""
    found = amount(value)
    if not 0 < found < 1:
        raise Unread("a plan holds out a share of the documents") if found else Idle("0 holds nothing out")
    return found


_DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("float32", "fp32", "float", "torch.float32", "no"), "float32"),
}


def dtype(value: Value) -> str:
    name = text(value).lower()
    if name in ("float16", "fp16", "half", "torch.float16"):
        raise Unread("planc does not scale the loss, which float16 needs: train in bfloat16")
    if name not in _DTYPES:
        raise _automatic(value) or Unread(f"planc does not train in `{written(value)}`")
    return _DTYPES[name]


def bfloat16_if(value: Value) -> str:
    """bfloat16 of a flag that turns it on."""
    if not flag(value):
        raise Idle("off")
    return "bfloat16"


def _automatic(value: Value) -> Automatic | None:
    return Automatic() if isinstance(value, str) and value.lower() == "auto" else None


def choice(names: Mapping[str, _Meant], refusal: str) -> Callable[[Value], _Meant]:
    """The reader of a closed choice: what a word in any case means. `refusal` names what planc has."""

    def read(value: Value) -> _Meant:
        word = text(value).lower()
        if word not in names:
            raise Unread(refusal.format(written(value)))
        return names[word]

    return read


def among(**names: str) -> Callable[[Value], str]:
    """The reader of a closed choice that the launching program may fill in."""
    read = choice(names, "planc does not have `{}`")

    def read_unless_filled_in(value: Value) -> str:
        if (automatic := _automatic(value)) is not None:
            raise automatic
        return read(value)

    return read_unless_filled_in


_ADAMW = "adamw adamw_torch adamw_torch_fused adamw_hf adamw_torch_xla torch.optim.adamw adamw_fused"
_EIGHT_BITS = (
    "adamw_8bit adamw_bnb_8bit paged_adamw_8bit adamw_torch_8bit bitsandbytes.optim.adamw8bit "
    "bitsandbytes.optim.pagedadamw8bit torchao.optim.adamw8bit"
)
"""Pages of memory change nothing that is trained."""

optimizer = choice(
    {
        **dict.fromkeys(_EIGHT_BITS.split(), "adamw_8bit"),
        **dict.fromkeys(_ADAMW.split(), "adamw"),
        **dict.fromkeys(("adam", "torch.optim.adam"), "adam"),
        **dict.fromkeys(("sgd", "torch.optim.sgd"), "sgd"),
    },
    "planc has adamw, adamw_8bit, adamw_bf16, muon and sgd, with an lr of its own for each; not {}",
)
pipeline_schedule = choice(
    {"1f1b": "one_f_one_b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"},
    "planc has 1F1B, GPipe and Interleaved1F1B of torch's schedules, not {}",
)
schedule = choice(
    {
        **dict.fromkeys(("cosine", "cosine_with_min_lr", "warmupcosinelr"), "cosine"),
        **dict.fromkeys(("linear", "warmupdecaylr"), "linear"),
        **dict.fromkeys(("constant", "constant_with_warmup", "warmuplr"), "constant"),
        **dict.fromkeys(("warmup_stable_decay", "wsd"), "wsd"),
    },
    "planc has cosine, linear, constant and wsd, not {}",
)
balancer = choice({"headtail": "headtail", "none": "none"}, "planc has headtail and none, not {}")
save_mode = choice(
    {
        **dict.fromkeys(("async", "async_with_pinned_mem"), "async"),
        **dict.fromkeys(("disabled", "sync"), "sync"),
    },
    "planc saves sync or async, not {}",
)
offload_device = choice(
    {"cpu": True, "none": False}, "planc offloads to host memory (`cpu_offload`), not to {}"
)


def attention(value: Value) -> str:
    word = text(value).lower()
    if word in ("sdpa", "eager"):
        return word
    if "flash" in word or word in ("flex", "flex_attention"):
        raise Unread("planc has sdpa, which runs flash kernels on CUDA, and eager")
    raise Unread(f"planc has sdpa and eager, not {written(value)}")


def recompute(value: Value) -> str:
    """full, selective or none."""
    if isinstance(value, str) and value.lower() in ("full", "selective", "none"):
        return value.lower()
    return "full" if flag(value) else "none"


def shard_words(value: Value) -> tuple[str, ...]:
    """FSDP's words of transformers and accelerate, such as `full_shard auto_wrap` or `HYBRID_SHARD`."""
    if isinstance(value, bool):
        return ("full_shard",) if value else ("no_shard",)
    parts = value if isinstance(value, tuple) else (value,)
    words = tuple(word for part in parts for word in str(part).lower().replace(",", " ").split())
    named = tuple(_BY_NUMBER.get(word, word) for word in words)
    unknown = [word for word in named if word not in FSDP_WORDS]
    if unknown:
        raise Unread(f"planc does not have `{written(unknown[0])}`")
    return tuple(word for word in named if word != "auto_wrap") or ("full_shard" if named else "no_shard",)


_BY_NUMBER = {
    "1": "full_shard",
    "2": "shard_grad_op",
    "3": "no_shard",
    "4": "hybrid_shard",
    "5": "hybrid_shard_zero2",
}
"""torch's ShardingStrategy, as old configs have it."""


def stage(value: Value) -> int:
    """A ZeRO stage."""
    found = whole(value)
    if found > 3:
        raise Unread(f"ZeRO has stages 0 to 3, not {written(value)}")
    return found


def many(value: Value) -> int:
    """A degree above 1; one of 1 is a key without effect."""
    found = count(value)
    if found == 1:
        raise Idle("1 asks for what a plan does")
    return found


def wrapping(value: Value) -> bool:
    word = text(value).upper()
    if word == "TRANSFORMER_BASED_WRAP":
        return True
    raise Unread(f'the plan has one unit for each layer, `"model.layers.*" -> unit`, not {written(value)}')


def tuned_resharding(value: Value) -> bool:
    """True or false, or the strategy that older configs have under this key."""
    if isinstance(value, str) and value.upper() in ("FULL_SHARD", "HYBRID_SHARD"):
        return True
    if isinstance(value, str) and value.upper() in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"):
        return False
    return flag(value)


def trackers(value: Value) -> tuple[str, ...]:
    names = value if isinstance(value, tuple) else (value,)
    words = tuple(str(name).lower() for name in names if str(name).lower() not in ("none", "", "all"))
    others = [word for word in words if word not in ("tensorboard", "wandb")]
    if others:
        raise Unread(f"trackers are `tensorboard` and `wandb`, in `logging`, not {written(others[0])}")
    if not words:
        raise Idle("planc writes metrics.jsonl; a plan names each tracker in `logging`")
    return words


def warmup_steps(value: Value) -> float:
    """Steps, or a share of all steps below 1, as transformers takes them."""
    found = amount(value)
    return found if 0 < found < 1 else whole(value)


def steps(value: Value) -> int:
    if isinstance(value, int) and value <= 0:
        raise Idle(f"{written(value)} leaves the number of steps to the epochs")
    return count(value)


def epochs(value: Value) -> float:
    found = amount(value)
    if found == 0:
        raise Unread(f"`{written(value)}` trains nothing")
    return found


def hub_or_path(value: Value) -> str:
    return text(value)


def dataset(value: Value) -> str:
    """A local path; a dataset of the Hub needs a commit."""
    name = text(value)
    if name.endswith((".json", ".jsonl", ".parquet", ".arrow", ".txt")):
        return name
    if is_repository(name):
        nearest = f'`source = hf_hub("{name}", revision = "<commit>")`'
        raise Unread(f"a dataset of the Hub needs a commit in a plan: {nearest}")
    raise Unread("not local files: pass --data")
