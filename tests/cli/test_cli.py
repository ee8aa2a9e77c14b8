"""The command line: exit codes, formats, help, and wrong input without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from planc.cli.commands import check
from planc.cli.main import COMMANDS, main
from planc.graph.artifact import graph_of, load
from planc.graph.graph import plan_hash
from planc.plan.facts import ESTIMATED, facts
from tests.plans import PLANS, QUICKSTART, TINY, checked, write_plan

ROOT = Path(__file__).parents[2]


class Terminal:
    """Runs a command line in this process and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def run(self, *argv: str | Path) -> int:
        code = main([str(word) for word in argv])
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.out + self.err
        return code


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("TP_SIZE", "DP_SIZE", "CP_SIZE", "PLANC_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return Terminal(capsys)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(tmp_path, text=TINY)


def test_check_leaves_heavy_imports_alone() -> None:
    heavy = ("torch", "transformers", "rich", "numpy", "pydantic")
    script = (
        "import sys; from planc.cli.main import main; code = main(['check', sys.argv[1]]);"
        f"print(code, [name for name in {heavy} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, QUICKSTART],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_python_m_planc_exits_with_the_code(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "planc", "check", str(tmp_path / "no.plan")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "P100" in done.stdout


def test_reader_that_stops_reading_is_no_bug(plan: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "planc", "show", str(plan), "--graph", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_an_interrupt_is_one_line(terminal: Terminal, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "run", lambda arguments: signal.raise_signal(signal.SIGINT))
    # A shell starts what runs in its background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert terminal.run("check", plan) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert (terminal.out, terminal.err) == ("", "planc: interrupted\n")


@pytest.mark.parametrize(
    ("word", "help"),
    [
        ("tensr_parallel", "did you mean `tensor_parallel`?"),
        ("P40", "`P401`, `P402`"),
        ("columnwise", "`colwise`"),
        ("kv-heads-indivisble", "did you mean `kv-heads-indivisible`?"),
        ("tokens_per_stp", "`tokens_per_step`"),
        ("zzz", "`planc explain` lists all topics"),
        ("", "`planc explain` lists all topics"),
    ],
)
def test_explain_of_nothing_says_what_is_near(terminal: Terminal, word: str, help: str) -> None:
    assert terminal.run("explain", word) == 2
    assert help in terminal.err


def test_explain_knows_a_code_by_its_name(terminal: Terminal) -> None:
    assert terminal.run("explain", "kv-heads-indivisible") == 0
    assert terminal.out.startswith("# P402: ")


def test_explain_expect_lists_every_fact(terminal: Terminal, plan: Path) -> None:
    bound = checked(plan).bound
    assert bound is not None
    assert terminal.run("explain", "expect") == 0
    listed = {line.split()[0] for line in terminal.out.splitlines() if line.startswith("  ")}
    assert {*facts(bound.plan, bound.inventory), *ESTIMATED} <= listed


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("path", [*PLANS.glob("*.plan")], ids=lambda path: path.stem)
def test_resolved_plans_are_formatted(terminal: Terminal, path: Path, tmp_path: Path) -> None:
    assert terminal.run("show", path, "--resolved") == 0
    resolved = tmp_path / "resolved.plan"
    resolved.write_text(terminal.out)
    assert terminal.run("fmt", "--check", resolved) == 0


def test_long_lines_of_a_resolved_plan_are_formatted(terminal: Terminal, tmp_path: Path) -> None:
    files = ", ".join(f'"data/part_{number}.txt"' for number in range(20))
    path = write_plan(tmp_path, text=TINY, edits=[('"data/*.txt"', files)])
    assert terminal.run("show", path, "--resolved") == 0
    resolved = tmp_path / "resolved.plan"
    resolved.write_text(terminal.out)
    assert terminal.run("fmt", "--check", resolved) == 0


@pytest.mark.parametrize("argv", [["--help"], *([command.name, "--help"] for command in COMMANDS)])
def test_help_reads_and_has_examples(terminal: Terminal, argv: list[str]) -> None:
    assert terminal.run(*argv) == 0
    assert "example" in terminal.out
    assert all(len(line) <= 110 for line in terminal.out.splitlines())


def test_every_command_file_is_registered() -> None:
    files = (ROOT / "planc" / "cli" / "commands").glob("*.py")
    commands = {path.stem.rstrip("_") for path in files if "\nDESCRIPTION = " in path.read_text()}
    assert {command.name.replace("-", "_") for command in COMMANDS} == commands


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["chekc"],
        ["check"],
        ["check", "--nonsense", "x"],
        ["check", "x", "--world-size", "0"],
        ["show", "a", "b"],
    ],
)
def test_wrong_usage_is_two(terminal: Terminal, argv: list[str]) -> None:
    assert terminal.run(*argv) == 2


def test_clean_plan_is_zero_with_a_summary(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("check", plan) == 0
    graph = checked(plan).graph
    assert graph is not None
    assert plan_hash(graph)[:12] in terminal.out
    assert "world size 4" in terminal.out
    assert "128 tokens per step, gradient accumulation 1" in terminal.out


def test_errors_are_one_and_several_plans_are_all_checked(terminal: Terminal, plan: Path) -> None:
    broken = write_plan(plan.parent, name="broken.plan", text=TINY, edits=[("steps = 10", "stepz = 10")])
    assert terminal.run("check", broken, plan) == 1
    assert "error[P202]" in terminal.out
    assert f"{plan} passed, plan_hash " in terminal.out


def test_the_summary_lists_what_was_not_read(terminal: Terminal, plan: Path) -> None:
    (plan.parent / "data").mkdir()
    (plan.parent / "data" / "a.txt").write_text("a")
    assert terminal.run("check", plan) == 0
    assert terminal.out.splitlines()[-1].split(maxsplit=2)[2] == "data; --deep also rehearses the run"


def test_data_that_matches_no_file_is_named_in_every_output(terminal: Terminal, plan: Path) -> None:
    (plan.parent / "data").mkdir()
    assert terminal.run("check", plan, "--output-format", "json") == 0
    (found,) = json.loads(terminal.out)["diagnostics"]
    assert (found["code"], found["severity"]) == ("P738", "note")
    assert terminal.run("check", plan, "--output-format", "concise") == 0
    assert "note[P738] no such file on this machine: no file matches `data/*.txt`" in terminal.out
    assert terminal.run("check", plan) == 0
    assert "not read       data (no file matches data/*.txt); --deep" in terminal.out


def test_weights_and_a_tokenizer_that_is_not_here_are_not_read(terminal: Terminal, plan: Path) -> None:
    settings = ("--set", "model.weights=pretrained", "--set", 'data.tokenizer=file("none.json")')
    assert terminal.run("check", plan, *settings) == 0
    absent = "weights (files not found), data (no file matches data/*.txt)"
    assert f"  not read       {absent}, tokenizer (no file none.json); --deep" in terminal.out


def test_concise_is_one_line_a_finding(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("check", plan, "--output-format", "concise") == 0
    assert terminal.out == ""
    assert terminal.run("check", plan, "--set", "mesh.nope=1", "--output-format", "concise") == 1
    assert terminal.out.startswith("--set:1:1: error[P215] ")
    assert terminal.out.count("\n") == 1


def test_json_is_one_document(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("check", plan, plan, "--set", "mesh.tp=8", "--output-format", "json") == 1
    document = json.loads(terminal.out)
    assert document["format_version"] == 1
    assert document["summary"]["error"] == len(document["diagnostics"]) >= 2


def test_colour_needs_a_terminal(terminal: Terminal, plan: Path) -> None:
    terminal.run("check", plan, "--set", "mesh.tp=8")
    assert "\033[" not in terminal.out


def test_missing_file_folder_and_fifo_are_two(terminal: Terminal, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.plan"
    os.mkfifo(fifo)
    for path in (tmp_path / "no.plan", tmp_path, fifo):
        for command in ("check", "show"):
            assert terminal.run(command, path) == 2
            assert "P100" in terminal.out + terminal.err


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\x00" * 100, b"\x89PNG\r\n", "mesh { tp = ٢ }".encode()]
)
def test_binary_and_odd_text_are_findings(terminal: Terminal, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.plan"
    path.write_bytes(content)
    for command in ("check", "show"):
        assert terminal.run(command, path) == 1


@pytest.mark.parametrize(
    "setting", ["", "=", "mesh.tp", "mesh.tp=", "mesh.tp=4 5", "mesh.tp=x", "nope=1", "mesh.tp=2.5"]
)
def test_bad_setting_points_at_itself(terminal: Terminal, plan: Path, setting: str) -> None:
    assert terminal.run("check", plan, "--set", "size=2", "--set", setting, "--output-format", "concise") == 1
    assert terminal.out.startswith("--set[2]:1:")


@pytest.mark.parametrize("folder", ["models/none", "x.plan", "x" * 5000])
def test_model_that_is_not_there_is_a_finding(terminal: Terminal, plan: Path, folder: str) -> None:
    assert terminal.run("check", plan, "--set", f'model.hf="{folder}"', "--output-format", "concise") == 1
    assert "P216" in terminal.out


def test_unknown_variable_with_the_prefix_is_reported(
    terminal: Terminal, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANC_CAHCE", "/tmp")
    assert terminal.run("check", plan) == 0
    assert "PLANC_CAHCE" in terminal.err


def test_environment_sets_sizes_and_says_so(
    terminal: Terminal, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TP_SIZE", "4")
    assert terminal.run("check", plan) == 0
    assert "world size 8" in terminal.out
    assert "TP_SIZE in the environment sets mesh.tp=4" in terminal.err


@pytest.mark.parametrize("command", ["check", "show", "compile"])
def test_malformed_size_variable_is_two(
    terminal: Terminal, plan: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("DP_SIZE", "2.0")
    output = ["-o", str(plan.parent / "x.json")] if command == "compile" else []
    assert terminal.run(command, plan, *output) == 2
    assert "DP_SIZE" in terminal.err


def test_bug_is_one_line_and_two(
    terminal: Terminal, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr(check, "run", fail)
    assert terminal.run("check", plan) == 2
    assert terminal.err.startswith("planc: internal error: KeyError: 'x'")
    assert terminal.err.count("\n") == 1
    assert main(["check", str(plan), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_panic_of_a_library_is_a_bug_like_any_other(
    terminal: Terminal, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(_: object) -> int:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(x+)+y|[^x]|x"), "isolated")
        return len(tokenizer.encode("x" * 40))

    monkeypatch.setattr(check, "run", panic)
    assert terminal.run("check", plan) == 2
    assert "planc: internal error: PanicException: Onig" in terminal.err


VIEWS = [
    [],
    ["--resolved"],
    ["--layout"],
    ["--mesh"],
    ["--origin"],
    ["--passes"],
    ["--graph", "text"],
    ["--graph", "mermaid"],
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: " ".join(view) or "overview")
def test_every_view_shows_something(terminal: Terminal, plan: Path, view: list[str]) -> None:
    assert terminal.run("show", plan, *view) == 0
    assert len(terminal.out.splitlines()) > 5
    assert terminal.err == ""


@pytest.mark.parametrize("view", [[], ["--layout"], ["--mesh"], ["--origin"], ["--passes"]])
def test_views_have_a_json_form(terminal: Terminal, plan: Path, view: list[str]) -> None:
    assert terminal.run("show", plan, *view, "--output-format", "json") == 0
    assert json.loads(terminal.out)["format_version"] == 1


def test_graph_as_json_is_json(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("show", plan, "--graph", "json") == 0
    assert json.loads(terminal.out)["setup"][0]["op"] == "mesh.init"


def test_findings_of_show_go_to_stderr(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("show", plan, "--set", "mesh.tp=8") == 1
    assert terminal.out == ""
    assert "P402" in terminal.err


def test_resolved_plan_checks_from_a_file(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("show", plan, "--resolved", "--set", "size=4") == 0
    resolved = plan.parent / "resolved.plan"
    resolved.write_text(terminal.out)
    assert terminal.run("check", resolved) == 0
    assert terminal.run("diff", plan, resolved, "--set", "mesh.dp_shard=2", "--exit-code") == 0


def test_compile_writes_what_check_promised(terminal: Terminal, plan: Path) -> None:
    output = plan.parent / "deep" / "x.json"
    output.parent.mkdir()
    assert terminal.run("compile", plan, "-o", output, "--set", "mesh.tp=4") == 0
    artifact = load(output.read_text())
    assert graph_of(artifact) == checked(plan, "mesh.tp=4").graph
    assert artifact.overrides == ("--set mesh.tp=4",)
    assert artifact.base == ".."


def test_plan_hash_does_not_depend_on_where_the_artifact_lies(terminal: Terminal, plan: Path) -> None:
    (plan.parent / "deep").mkdir()
    hashes = set()
    for output in (plan.parent / "x.json", plan.parent / "deep" / "x.json"):
        assert terminal.run("compile", plan, "-o", output) == 0
        hashes.add(load(output.read_text()).plan_hash)
    assert len(hashes) == 1


def test_compile_refuses_to_overwrite_the_plan(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("compile", plan, "-o", plan) == 2
    assert plan.read_text() == TINY


def test_compile_leaves_devices_and_folders_alone(terminal: Terminal, plan: Path) -> None:
    fifo = plan.parent / "fifo"
    os.mkfifo(fifo)
    for output in (fifo, plan.parent, "", plan.parent / ("x" * 5000)):
        assert terminal.run("compile", plan, "-o", output) == 2
    assert fifo.is_fifo()


def test_compile_follows_a_link(terminal: Terminal, plan: Path) -> None:
    (plan.parent / "deep").mkdir()
    link = plan.parent / "link.json"
    link.symlink_to(plan.parent / "deep" / "x.json")
    assert terminal.run("compile", plan, "-o", link) == 0
    assert load((plan.parent / "deep" / "x.json").read_text()).base == ".."


def test_compile_into_a_missing_folder_is_two(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("compile", plan, "-o", plan.parent / "no" / "x.json") == 2


def test_broken_plan_compiles_to_nothing(terminal: Terminal, plan: Path) -> None:
    output = plan.parent / "x.json"
    assert terminal.run("compile", plan, "-o", output, "--set", "mesh.tp=8") == 1
    assert not output.exists()


@pytest.mark.parametrize("topic", ["tp.shard", "mesh", "expect", "colwise"])
def test_explain_explains(terminal: Terminal, topic: str) -> None:
    assert terminal.run("explain", topic) == 0
    assert terminal.out.startswith(topic)


@pytest.mark.parametrize(("topic", "near"), [("tp.shrad", "tp.shard"), ("optimiser", "optimizer")])
def test_explain_suggests(terminal: Terminal, topic: str, near: str) -> None:
    assert terminal.run("explain", topic) == 2
    assert f"did you mean `{near}`?" in terminal.err


@pytest.mark.parametrize("topic", ["", "../codes", "p999", "\x1b[2J"])
def test_explain_of_nothing_is_two(terminal: Terminal, topic: str) -> None:
    assert terminal.run("explain", topic) == 2


def test_explain_without_a_topic_lists_them(terminal: Terminal) -> None:
    assert terminal.run("explain") == 0
    assert "ops: mesh.init" in terminal.out


def test_inventory_shows_a_model(terminal: Terminal, plan: Path) -> None:
    assert terminal.run("inventory", plan.parent / "models" / "tiny-llama") == 0
    assert "804_992 parameters" in terminal.out
    assert "model.layers.{0..3}.mlp.up_proj" in terminal.out


def test_inventory_as_json_is_the_file(terminal: Terminal, plan: Path) -> None:
    folder = plan.parent / "models" / "tiny-llama"
    assert terminal.run("inventory", folder, "--output-format", "json") == 0
    assert terminal.out == (folder / "inventory.json").read_text()


def test_a_saved_inventory_is_reported_in_one_line(terminal: Terminal, plan: Path) -> None:
    folder = plan.parent / "models" / "tiny-llama"
    assert terminal.run("inventory", folder, "--save") == 0
    assert terminal.err.count(str(folder / "inventory.json")) == 1
    assert terminal.err.startswith("wrote ")


def test_inventory_of_nothing_is_two(terminal: Terminal, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        assert terminal.run("inventory", path) == 2
        assert terminal.err.startswith("planc: error: ")


def test_explain_takes_a_flag_with_dashes(terminal: Terminal) -> None:
    assert terminal.run("explain", "tensor-model-parallel-size") == 0
    assert "write `tp = 2` in `mesh`" in terminal.out
    assert terminal.run("explain", "--", "--tensor-model-parallel-size") == 0
    assert "write `tp = 2` in `mesh`" in terminal.out
    assert terminal.run("explain", "--tensor-model-parallel-size") == 2
    assert "run `planc explain tensor_model_parallel_size`" in terminal.err
