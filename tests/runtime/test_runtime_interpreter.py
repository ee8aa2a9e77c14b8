"""The interpreter on the null backend: what runs, in which order, and what a failure says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.runtime.errors import ExitCode, OpFailure, RunError
from planc.runtime.interpreter import Position, run
from planc.runtime.torch.handlers import HANDLERS
from planc.source import Span
from planc.vocab import DType
from tests.null_backend import HANDLED, NullBackend

PLACE = Span("a.plan", 7, 3, 7, 9)
SETUP = (
    ops.InitMesh(sizes=(), backend="gloo", timeout_seconds=60),
    ops.BuildModel(
        path="m",
        config_digest="d",
        architecture="A",
        dtype=DType.FLOAT32,
        own_dtypes=(),
        kept_in_float32=(),
        zeroed=(),
        span=PLACE,
    ),
)
BODY = (
    ops.ShardContext(balance="none", buffers=(), over=()),
    ops.Forward(over=()),
    ops.ComputeLoss(vocab_over=()),
    ops.Backward(over=()),
)


def graph(
    *, num_steps: int = 2, times: int = 1, save_every: int | None = None, saves_at_end: bool = True
) -> Graph:
    step = (
        ops.NextBatch(count_over=()),
        ops.Accumulate(times=times, body=BODY),
        ops.StepOptimizer(span=PLACE),
        ops.Log(every_steps=1, over=()),
    )
    save = (ops.SaveCheckpoint(every_steps=save_every, at_end=saves_at_end, keep_last=1),)
    return Graph("g", (), num_steps, SETUP, step, save)


def executed(
    of: Graph, *, resumed_steps: int = 0, stop_after: int | None = None
) -> list[tuple[Position, str]]:
    backend = NullBackend(resumed_steps=resumed_steps)
    run(of, backend, stop_after=stop_after)
    return [(position, op.name) for position, op in backend.executed]


def saved_steps(of: Graph, *, resumed_steps: int = 0, stop_after: int | None = None) -> list[int]:
    done = executed(of, resumed_steps=resumed_steps, stop_after=stop_after)
    return [position.step for position, name in done if name == "checkpoint.save"]


class Failing(NullBackend):
    """Fails at the optimizer's step."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, ops.StepOptimizer):
            raise self.error
        super().execute(op, position)


def failure(error: BaseException) -> RunError:
    """What leaves the interpreter when an op raises `error`."""
    with pytest.raises(RunError) as caught:
        run(graph(), Failing(error))
    return caught.value


def test_setup_runs_once_then_each_step_in_order() -> None:
    names = [name for _, name in executed(graph(num_steps=2, saves_at_end=False))]
    step = ["batch.next", "cp.shard", "forward", "loss", "backward", "optimizer.step", "log"]
    assert names == ["mesh.init", "model.build", *step, *step]


def test_setup_is_step_0_and_steps_count_from_1() -> None:
    steps = [position.step for position, _ in executed(graph(num_steps=2, saves_at_end=False))]
    assert steps == [0, 0] + [1] * 7 + [2] * 7


def test_accumulation_repeats_the_body_and_marks_its_last_round() -> None:
    done = executed(graph(num_steps=1, times=3, saves_at_end=False))
    rounds = [
        (position.micro_step, position.is_last_micro_step) for position, name in done if name == "backward"
    ]
    assert rounds == [(0, False), (1, False), (2, True)]


def test_accumulation_finishes_one_micro_step_before_the_next() -> None:
    done = executed(graph(num_steps=1, times=2, saves_at_end=False))
    body = [name for _, name in done if name in {op.name for op in BODY}]
    assert body == [op.name for op in BODY] * 2


@pytest.mark.parametrize(
    ("num_steps", "save_every", "saves_at_end", "expected"),
    [
        (6, 2, True, [2, 4, 6]),
        (5, 2, True, [2, 4, 5]),
        (5, 2, False, [2, 4]),
        (5, None, True, [5]),
        (5, None, False, []),
        (5, 1, True, [1, 2, 3, 4, 5]),
        (3, 9, True, [3]),
    ],
)
def test_saves_follow_their_policy_and_never_twice_a_step(
    num_steps: int, save_every: int | None, saves_at_end: bool, expected: list[int]
) -> None:
    found = saved_steps(graph(num_steps=num_steps, save_every=save_every, saves_at_end=saves_at_end))
    assert found == expected


def test_a_resumed_run_goes_on_after_the_completed_steps() -> None:
    done = executed(graph(num_steps=5, saves_at_end=False), resumed_steps=3)
    assert [position.step for position, name in done if name == "batch.next"] == [4, 5]
    assert [position.step for position, name in done if name == "model.build"] == [0]


def test_a_finished_run_trains_and_saves_nothing_more() -> None:
    assert saved_steps(graph(num_steps=5), resumed_steps=5) == []
    assert run(graph(num_steps=5), NullBackend(resumed_steps=7)) == 7


def test_stopping_early_saves_at_the_step_where_it_stops() -> None:
    assert saved_steps(graph(num_steps=9, save_every=2), stop_after=3) == [2, 3]


def test_stopping_after_the_last_step_changes_nothing() -> None:
    assert executed(graph(num_steps=2), stop_after=9) == executed(graph(num_steps=2))


def told(of: Graph, *, at: int, resumed_steps: int = 0) -> tuple[int, list[tuple[int, str]]]:
    """The last step of a run that is asked to stop after a step, and what it saved when."""
    backend = NullBackend(resumed_steps=resumed_steps, told_at=at)
    last = run(of, backend)
    saves = [(position.step, op.name) for position, op in backend.executed if op in of.save]
    return last, saves


def test_a_run_that_is_told_to_end_saves_the_step_and_exports_nothing() -> None:
    export = ops.ExportHf(when="end", dtype=DType.FLOAT32, path="m", over=())
    of = graph(num_steps=9, save_every=5, saves_at_end=False)
    assert told(replace(of, save=(*of.save, export)), at=3) == (3, [(3, "checkpoint.save")])


def test_a_step_that_is_saved_anyway_is_saved_once() -> None:
    assert told(graph(num_steps=9, save_every=3), at=3) == (3, [(3, "checkpoint.save")])


def test_a_run_that_is_told_to_end_before_its_first_step_saves_nothing() -> None:
    assert told(graph(num_steps=9), at=0) == (0, [])
    assert told(graph(num_steps=9), at=4, resumed_steps=4) == (4, [])


def test_a_run_that_is_told_to_end_at_its_last_step_ends_as_ever() -> None:
    assert told(graph(num_steps=3), at=3) == (3, [(3, "checkpoint.save")])


@pytest.mark.parametrize(
    ("resumed_steps", "stop_after", "expected"),
    [(0, None, [5]), (3, None, [5]), (5, None, [5]), (0, 2, [2]), (2, 2, [2]), (7, None, [7])],
)
def test_an_export_is_of_the_last_step_however_the_run_came_there(
    resumed_steps: int, stop_after: int | None, expected: list[int]
) -> None:
    export = ops.ExportHf(when="end", dtype=DType.FLOAT32, path="m", over=())
    of = graph(num_steps=5, save_every=1)
    of = replace(of, save=(*of.save, export))
    done = executed(of, resumed_steps=resumed_steps, stop_after=stop_after)
    assert [position.step for position, name in done if name == "export.hf"] == expected


def test_a_checkpoint_is_saved_before_an_export() -> None:
    export = ops.ExportHf(when="end", dtype=DType.FLOAT32, path="m", over=())
    of = graph(num_steps=1)
    names = [name for _, name in executed(replace(of, save=(*of.save, export)))]
    assert names[-2:] == ["checkpoint.save", "export.hf"]


def test_the_last_step_is_returned() -> None:
    assert run(graph(num_steps=4), NullBackend()) == 4
    assert run(graph(num_steps=4), NullBackend(), stop_after=2) == 2


def test_an_unforeseen_error_names_op_line_step_and_rank() -> None:
    error = failure(ValueError("shapes differ"))
    assert isinstance(error, OpFailure)
    assert error.message == "ValueError in op `optimizer.step` (step 1, rank 0): shapes differ"
    assert error.span == PLACE
    assert error.code is ExitCode.INTERNAL
    assert not error.is_shared


def test_a_foreseen_error_gets_the_line_and_keeps_its_code() -> None:
    error = failure(RunError("no", code=ExitCode.NUMERICS))
    assert (error.message, error.code, error.span) == ("no", ExitCode.NUMERICS, PLACE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), ExitCode.COMMUNICATION),
        (RuntimeError("NCCL error: unhandled system error"), ExitCode.COMMUNICATION),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), ExitCode.COMMUNICATION),
        (ConnectionResetError(104, "Connection reset by peer"), ExitCode.COMMUNICATION),
        (OSError(28, "No space left on device"), ExitCode.STORAGE),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ExitCode.INTERNAL),
    ],
)
def test_the_exit_code_tells_lost_peers_and_full_disks_from_bugs(error: Exception, code: ExitCode) -> None:
    assert failure(error).code is code


def test_a_lost_peer_sends_the_reader_to_that_peer() -> None:
    error = failure(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert error.help is not None
    assert "another rank" in error.help


def test_a_panic_of_a_library_in_rust_is_a_failure_of_an_op() -> None:
    """It is a BaseException, which passes every `except Exception`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(x+)+y|[^x]|x"), "isolated")
    with pytest.raises(BaseException, match="Onig") as panic:
        tokenizer.encode("x" * 40)
    assert not isinstance(panic.value, Exception)
    error = failure(panic.value)
    assert isinstance(error, OpFailure) and error.code is ExitCode.INTERNAL
    assert error.message.startswith("PanicException in op `"), error.message


def test_an_interrupt_is_no_failure_of_an_op() -> None:
    class Interrupted(NullBackend):
        def execute(self, op: Op, position: Position) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(graph(), Interrupted())


@pytest.mark.parametrize("handled", [set(HANDLERS), set(HANDLED)], ids=["torch", "null"])
def test_every_backend_handles_every_op_but_accumulate(handled: set[type[Op]]) -> None:
    assert handled == set(ops.OPS) - {ops.Accumulate}


def test_a_step_that_is_left_is_undone_and_the_step_before_is_saved() -> None:
    backend = NullBackend(left_at=3)
    assert run(graph(num_steps=9, times=4), backend) == 2
    assert backend.num_left == 1
    saves = [position.step for position, op in backend.executed if isinstance(op, ops.SaveCheckpoint)]
    assert saves == [2]


def test_a_step_that_is_left_right_after_a_resume_saves_nothing_new() -> None:
    backend = NullBackend(resumed_steps=2, left_at=3)
    assert run(graph(num_steps=9, times=4), backend) == 2
    assert not any(isinstance(op, ops.SaveCheckpoint) for _, op in backend.executed)
