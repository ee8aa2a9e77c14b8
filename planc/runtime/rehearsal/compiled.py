"""Tensors that compiled modules keep and make, without a compiler: the partitioner's graphs, node by node.

Inductor gets the graphs that AOTAutograd's partitioner makes of a module: a forward, what it saves, and a
backward that computes the rest again. It writes one kernel for neighboring pointwise ops and reductions, so
that only the last of their results ever exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import saved_tensors_hooks

from planc.graph.ops import CompileModules
from planc.runtime.rehearsal import private
from planc.runtime.torch.parallel.sharded_modules import local_parameters
from planc.runtime.torch.training.offloading import inner_forward, replace_inner_forward

Away = Callable[[], AbstractContextManager[None]]
"""Inside, no new tensor counts."""


class NameOnlyCompiler:
    """Replaces forwards by their partitioned graphs, which modules with equal code share."""

    def __init__(self, fake_mode: private.FakeTensorMode, away: Away) -> None:
        # Graphs of another world know other process groups.
        torch.compiler.reset()
        compiler = functools.partial(_interpreted, away=away)
        self._fake_mode = fake_mode
        self._backend = private.aot_autograd(
            fw_compiler=compiler,
            bw_compiler=compiler,
            decompositions=private.inductor_decompositions,
            partition_fn=private.min_cut_partition,
        )

    def compile(self, module: nn.Module, op: CompileModules) -> None:
        inner = self.compiled(inner_forward(module), op=op)

        @functools.wraps(inner_forward(module))
        def forward(*arguments: Any, **keywords: Any) -> Any:
            with local_parameters(module):
                return inner(*arguments, **keywords)

        replace_inner_forward(module, forward)

    def compiled(self, function: Callable[..., Any], *, op: CompileModules) -> Callable[..., Any]:
        """The function as inductor would run it."""
        inner = torch.compile(function, backend=self._backend, fullgraph=op.fullgraph, dynamic=op.dynamic)
        traced: set[bool] = set()

        def run(*arguments: Any, **keywords: Any) -> Any:
            # Backward recomputes what was offloaded from other tensors, for which dynamo traces again.
            is_recomputing = private.is_in_backward()
            if is_recomputing not in traced:
                traced.add(is_recomputing)
                # It traces nothing under the modes that follow a step's tensors, and those who count what is
                # saved count this run too, unless it saves for itself.
                with private.disable_current_modes(), self._fake_mode, saved_tensors_hooks(_same, _same):
                    inner(*arguments, **keywords)
            return inner(*arguments, **keywords)

        return run


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _interpreted(graph: fx.GraphModule, _: Any, *, away: Away) -> Callable[[list[Any]], Any]:
    interpreter = _Fused(graph, away)

    def run(arguments: list[Any]) -> Any:
        results = interpreter.boxed_run(arguments)
        # It would hold them until its next run.
        interpreter.env.clear()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Fused(fx.Interpreter):
    """Runs a graph, in which what kernels keep in registers takes no memory."""

    def __init__(self, graph: fx.GraphModule, away: Away) -> None:
        super().__init__(graph)
        self._away = away
        known = private.partitioner_ops()
        fused = {node for node in graph.graph.nodes if known.is_fusible(node) or known.is_view(node)}
        self._within = {node for node in fused if node.users and all(user in fused for user in node.users)}

    def run_node(self, n: fx.Node) -> Any:
        if n not in self._within:
            return super().run_node(n)
        with self._away():
            return super().run_node(n)
