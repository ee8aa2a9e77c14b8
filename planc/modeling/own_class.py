"""A plan's own model class as one of transformers, which probes and runs build. Imports torch.

A class of transformers is used as it is. Any other module gets what transformers' classes have in addition:
a config, an output with logits, and an initialization module by module. Its modules keep their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from planc.modeling.private import with_values

_LARGE = 2**16
"""Elements of a tensor that the constructor leaves to the initialization, as those of linear layers."""
_INPUTS = ("input_ids", "position_ids")


def model_class_of(own: Any, *, name: str, arguments: Mapping[str, Any]) -> type[PreTrainedModel]:
    """A class of transformers with the modules and code of a plan's own, built by `own(config, **arguments)`.

    TypeError unless it is a class of torch.nn.Module with these inputs.
    """
    if not (isinstance(own, type) and issubclass(own, nn.Module)):
        raise TypeError(f"`{name}` is not a class of torch.nn.Module")
    if issubclass(own, PreTrainedModel):
        return own if not arguments else _with_arguments(own, dict(arguments))
    takes = inspect.signature(own.forward).parameters
    required = [parameter for parameter in list(takes)[1:] if _is_required(takes[parameter])]
    if "input_ids" not in takes or not {*required} <= {*_INPUTS}:
        raise TypeError(
            f"`{name}.forward` takes {', '.join(required) or 'nothing'}, and must take `input_ids`, and "
            "`position_ids` if it uses positions"
        )
    members = {
        "__module__": own.__module__,
        "_planc_own": own,
        "_planc_arguments": dict(arguments),
        "_planc_takes": tuple(given for given in _INPUTS if given in takes),
    }
    return type(own.__name__, (_Own, own, _Built), members)


def _is_required(parameter: inspect.Parameter) -> bool:
    is_variable = parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return parameter.default is inspect.Parameter.empty and not is_variable


def config_of(model_class: type[PreTrainedModel], values: dict[str, Any]) -> PreTrainedConfig:
    """The config of a class of `model_class_of`, with the values of a config.json."""
    kind = getattr(model_class, "config_class", None) or PreTrainedConfig
    config: PreTrainedConfig = kind.from_dict(values)
    return config


def _with_arguments(own: type[PreTrainedModel], arguments: dict[str, Any]) -> type[PreTrainedModel]:
    def build(self: Any, config: PreTrainedConfig) -> None:
        own.__init__(self, config, **arguments)

    return type(own.__name__, (own,), {"__module__": own.__module__, "__init__": build})


class _Own(PreTrainedModel):  # type: ignore[misc]
    """Precedes the plan's own class: takes what planc passes, and returns what planc reads."""

    config_class = PreTrainedConfig
    _planc_own: Any
    _planc_arguments: Mapping[str, Any]
    _planc_takes: tuple[str, ...]
    # Which attention it has is probed, and a check holds `model.attention` against that.
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, config: PreTrainedConfig) -> None:
        # The own class calls the `__init__` of nn.Module, in whose place is that of _Built.
        object.__setattr__(self, "_planc_config", config)
        self._planc_own.__init__(self, config, **self._planc_arguments)
        if "config" not in vars(self):
            raise TypeError(f"{type(self).__name__}.__init__ does not call super().__init__()")
        self.post_init()

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **_: Any) -> CausalLMOutput:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        given = dict(zip(_INPUTS, (input_ids, position_ids), strict=True))
        output = self._planc_own.forward(self, **{name: given[name] for name in self._planc_takes})
        logits = getattr(output, "logits", output)
        if input_ids.is_meta:
            self._require_logits(logits, (*input_ids.shape, self.config.vocab_size))
        return CausalLMOutput(logits=logits)

    def _require_logits(self, logits: Any, shape: tuple[int, ...]) -> None:
        """TypeError unless a probe, where nothing is sharded, gets logits of this shape."""
        is_tensor = isinstance(logits, Tensor)
        if not is_tensor or tuple(logits.shape) != shape:
            found = f"a tensor {list(logits.shape)}" if is_tensor else f"a {type(logits).__name__}"
            raise TypeError(
                f"`{type(self).__name__}.forward` returns {found}, and must return logits "
                f"[batch, tokens, vocabulary], {list(shape)} here"
            )

    def get_input_embeddings(self) -> nn.Module:
        embeddings = (module for module in self.modules() if isinstance(module, nn.Embedding))
        size = self.config.vocab_size
        of_tokens = next((module for module in embeddings if module.num_embeddings == size), None)
        if of_tokens is None:
            raise TypeError(f"{type(self).__name__} has no nn.Embedding with the config's vocab_size, {size}")
        return of_tokens

    def get_output_embeddings(self) -> nn.Module | None:
        linear = [module for module in self.modules() if isinstance(module, nn.Linear)]
        heads = [module for module in linear if module.out_features == self.config.vocab_size]
        return heads[-1] if heads else None

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize as the class's `__init__` does, by `reset_parameters`, and then its `_init_weights`."""
        own = getattr(self._planc_own, "_init_weights", None)
        reset: Callable[[], object] | None = getattr(module, "reset_parameters", None)
        constants = self._constants_of(module)
        for name, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is None or tensor.is_meta or name not in constants:
                continue
            if name in module._buffers or reset is None:
                tensor.copy_(constants[name])
        if reset is not None:
            reset()
        if own is not None:
            own(self, module)

    def _constants_of(self, module: nn.Module) -> Mapping[str, Tensor]:
        constants: dict[str, dict[str, Tensor]] | None = vars(self).get("_planc_constants")
        if constants is None:
            constants = _constants(lambda: self._planc_own(self.config, **self._planc_arguments))
            object.__setattr__(self, "_planc_constants", constants)
            names = {id(part): fqn for fqn, part in self.named_modules()}
            object.__setattr__(self, "_planc_names", names)
        return constants.get(vars(self)["_planc_names"].get(id(module), ""), {})


class _Built(PreTrainedModel):  # type: ignore[misc]
    """Follows the plan's own class, whose `super().__init__()` builds a model of transformers here."""

    def __init__(self, *_: Any) -> None:
        super().__init__(self.__dict__.pop("_planc_config"))


class _LargeOnMeta(TorchFunctionMode):
    """Takes no memory for large tensors that nothing has been written to."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.empty and result.numel() > _LARGE:
            return torch.empty(result.shape, dtype=result.dtype, device="meta")
        return result


def _constants(build: Callable[[], nn.Module]) -> dict[str, dict[str, Tensor]]:
    """The tensors that a constructor sets to the same values each time, by module: of rotations, say."""
    built = []
    constants: dict[str, dict[str, Tensor]] = {}
    with with_values():
        for seed in (0, 1):
            with torch.random.fork_rng(devices=[]), torch.device("cpu"), _LargeOnMeta(), torch.no_grad():
                torch.manual_seed(seed)
                built.append(build())
        for fqn, module in built[0].named_modules():
            other = built[1].get_submodule(fqn)
            for name, tensor in {**module._parameters, **module._buffers}.items():
                again = getattr(other, name)
                if tensor is not None and not tensor.is_meta and torch.equal(tensor, again):
                    constants.setdefault(fqn, {})[name] = tensor.detach()
    return constants
