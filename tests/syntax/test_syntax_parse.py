"""Text to tree: every construct, and the exact place of every node."""

from __future__ import annotations

import pytest

from planc.source import SourceFile, Span
from planc.syntax import ast
from planc.syntax.parse import parse_assignment
from tests.plans import canonical_plans
from tests.syntax.reading import covered, nodes, parsed

SAMPLE = """\
# A comment first.
param tp_size: int(1..8) = 4  # and one beside
param lr: float(0.0..1e-1) = 3e-4
param name: string = "a # b"
param loud: bool = true

model { hf = "x", seed = -3 }
fsdp "label" on dp_shard, cp {
  auto
  override "model.layers.{0..3}.*" -> unit(reshard_after_forward = true)
  [ "model.norm",  # inside a list
    "lm_head", ] -> unit
  betas = [0.9, [0.95, x],]
  nested { deep { } }
}
expect { peak.memory <= 60 GiB, world_size == 4 }
"""


def value(text: str) -> ast.Value:
    """What `k = text` gives the key."""
    (setting,) = parsed(f"k = {text}").statements
    assert isinstance(setting, ast.Setting)
    return setting.value


def test_an_empty_file_has_no_statements() -> None:
    assert parsed("").statements == ()


@pytest.mark.parametrize("text", ["\n", "\n\n", "# c", "# c\n", "  # c\n\n\t# d\n  ", "\r\n"])
def test_blank_lines_and_comments_are_no_statements(text: str) -> None:
    assert parsed(text).statements == ()


def test_the_whole_file_is_the_tree_s_span() -> None:
    assert parsed("a = 1\nbc = 2").span == Span("x.plan", 1, 1, 2, 7)


def test_a_param_has_type_range_and_default() -> None:
    (param,) = parsed("param tp: int(1..8) = 4").statements
    assert isinstance(param, ast.Param)
    assert param.type.low is not None
    assert param.type.high is not None
    assert (param.name.text, param.type.name.text, param.type.low.value, param.type.high.value) == (
        "tp",
        "int",
        1,
        8,
    )
    assert isinstance(param.default, ast.Number)
    assert param.default.value == 4


def test_a_param_s_range_may_be_absent() -> None:
    (param,) = parsed("param tp: int = 4").statements
    assert isinstance(param, ast.Param)
    assert (param.type.low, param.type.high) == (None, None)


def test_a_block_has_label_mesh_dims_and_body() -> None:
    (block,) = parsed('export "hf" on dp_shard, cp { a = 1 }').statements
    assert isinstance(block, ast.Block)
    assert block.label is not None
    assert (block.kind.text, block.label.value) == ("export", "hf")
    assert [name.text for name in block.on] == ["dp_shard", "cp"]
    assert len(block.body) == 1


def test_blocks_nest() -> None:
    (outer,) = parsed("a { b { c { } } }").statements
    assert isinstance(outer, ast.Block)
    (inner,) = outer.body
    assert isinstance(inner, ast.Block)
    assert isinstance(inner.body[0], ast.Block)


@pytest.mark.parametrize("is_override", [False, True])
def test_a_setting_and_a_rule_may_override(*, is_override: bool) -> None:
    word = "override " if is_override else ""
    setting, rule = parsed(f'{word}k = 1\n{word}"a" -> b').statements
    assert isinstance(setting, ast.Setting)
    assert isinstance(rule, ast.Rule)
    assert (setting.override, rule.override) == (is_override, is_override)


def test_a_rule_has_patterns_and_an_action() -> None:
    one, many = parsed('"a.*" -> full\n["b", "c"] -> unit(x = 1)').statements
    assert isinstance(one, ast.Rule)
    assert isinstance(many, ast.Rule)
    assert ([p.value for p in one.patterns], [p.value for p in many.patterns]) == (["a.*"], ["b", "c"])
    assert isinstance(one.action, ast.Ref)
    assert isinstance(many.action, ast.Call)


def test_a_bare_word_is_a_directive() -> None:
    (directive,) = parsed("auto").statements
    assert isinstance(directive, ast.Directive)
    assert directive.name.text == "auto"


@pytest.mark.parametrize("operator", ["==", "!=", "<=", ">=", "<", ">"])
def test_a_comparison_keeps_its_operator(operator: str) -> None:
    (comparison,) = parsed(f"a.b {operator} 4").statements
    assert isinstance(comparison, ast.Comparison)
    assert (comparison.subject.text, comparison.operator) == ("a.b", operator)


@pytest.mark.parametrize(
    ("text", "number", "kind"),
    [
        ("0", 0, int),
        ("-7", -7, int),
        ("1_048_576", 1048576, int),
        ("2.0", 2.0, float),
        ("3e-4", 3e-4, float),
        ("-1_0.2_5E+1", -102.5, float),
        ("1e999", float("inf"), float),
    ],
)
def test_a_number_is_an_integer_only_where_written_so(text: str, number: float, kind: type) -> None:
    found = value(text)
    assert isinstance(found, ast.Number)
    assert (found.value, type(found.value), found.text, found.unit) == (number, kind, text, None)


@pytest.mark.parametrize("text", ["500 steps", "500steps", "500\tsteps"])
def test_a_number_takes_a_unit(text: str) -> None:
    found = value(text)
    assert isinstance(found, ast.Number)
    assert found.unit is not None
    assert (found.value, found.text, found.unit.text) == (500, "500", "steps")


def test_a_string_is_verbatim() -> None:
    found = value(r'"C:\n {x} # ä"')
    assert isinstance(found, ast.Text)
    assert found.value == r"C:\n {x} # ä"


@pytest.mark.parametrize("word", ["true", "false"])
def test_true_and_false_are_booleans(word: str) -> None:
    found = value(word)
    assert isinstance(found, ast.Bool)
    assert found.value is (word == "true")


@pytest.mark.parametrize("word", ["True", "on", "param", "override", "_x1"])
def test_other_words_are_references(word: str) -> None:
    found = value(word)
    assert isinstance(found, ast.Ref)
    assert found.name.text == word


def test_a_call_has_named_and_loose_arguments() -> None:
    found = value('f(1, x = g(), "s")')
    assert isinstance(found, ast.Call)
    assert [argument.name and argument.name.text for argument in found.arguments] == [None, "x", None]
    assert isinstance(found.arguments[1].value, ast.Call)


@pytest.mark.parametrize(("text", "length"), [("[]", 0), ("[1]", 1), ("[1,]", 1), ("[1, [2], x]", 3)])
def test_a_list_takes_a_trailing_comma(text: str, length: int) -> None:
    found = value(text)
    assert isinstance(found, ast.Items)
    assert len(found.values) == length


@pytest.mark.parametrize("text", ["f()", "f(1,)", "f(x = 1,)", "f(\n1,\n\n  # c\n2\n)", "f (1)"])
def test_a_call_may_span_lines_and_end_in_a_comma(text: str) -> None:
    assert isinstance(value(text), ast.Call)


@pytest.mark.parametrize("text", ["[\n1,\n2\n]", "[ # c\n1, # d\n # e\n2, ]", "[1\n,2]", "[\r\n1\r\n]"])
def test_newlines_and_comments_mean_nothing_in_a_list(text: str) -> None:
    found = value(text)
    assert isinstance(found, ast.Items)
    assert [item.value for item in found.values if isinstance(item, ast.Number)] in ([1], [1, 2])


@pytest.mark.parametrize(
    "text",
    [
        "b{a=1,c=2}",
        "b { a = 1, c = 2 }",
        "b { a = 1, c = 2, }",
        "b {\na = 1\nc = 2\n}",
        "b {\n\n  a = 1,\n  c = 2,\n\n}",
        "b { # c\n a = 1 # d\n # e\n c = 2 # f\n # g\n}",
        "b { a = 1,  # c\n c = 2 } # d",
        "b {\r\n  a = 1\r\n  c = 2\r\n}\r\n",
        "# c\r\nb { # d\r\n  a = 1\r\n\r\n  c = 2\r\n}",
        "\n \n\tb\t{ a = 1, c = 2 }\n# end",
    ],
)
def test_layout_and_comments_do_not_change_a_block(text: str) -> None:
    (block,) = parsed(text).statements
    assert isinstance(block, ast.Block)
    settings = [statement for statement in block.body if isinstance(statement, ast.Setting)]
    assert [(setting.name.text, covered(text, setting.value.span)) for setting in settings] == [
        ("a", "1"),
        ("c", "2"),
    ]


@pytest.mark.parametrize("text", ["b { }", "b {\n}", "b { # c\n}", "b{}"])
def test_a_block_may_be_empty(text: str) -> None:
    (block,) = parsed(text).statements
    assert isinstance(block, ast.Block)
    assert block.body == ()


def test_crlf_gives_the_tree_of_lf() -> None:
    kinds = [type(node) for node in nodes(parsed(SAMPLE))]
    assert [type(node) for node in nodes(parsed(SAMPLE.replace("\n", "\r\n")))] == kinds


@pytest.mark.parametrize(
    "text", [SAMPLE, SAMPLE.replace("\n", "\r\n"), *(p.read_text() for p in canonical_plans())]
)
def test_the_span_of_every_node_covers_its_text(text: str) -> None:
    for node in nodes(parsed(text)):
        match node:
            case ast.Name(name, span):
                assert covered(text, span) == name
            case ast.Text(string, span):
                assert covered(text, span) == f'"{string}"'
            case ast.Bool(flag, span):
                assert covered(text, span) == str(flag).lower()
            case ast.Number(unit=unit, text=number, span=span):
                assert covered(text, span) == (f"{number} {unit.text}" if unit else number)
            case ast.Call(name=name, span=span):
                assert covered(text, span).startswith(name.text)
                assert covered(text, span).endswith(")")
            case ast.Items(span=span):
                assert covered(text, span)[0] + covered(text, span)[-1] == "[]"
            case ast.Argument(name, inner, span):
                first = name.text if name else covered(text, inner.span)
                assert covered(text, span).startswith(first)
                assert covered(text, span).endswith(covered(text, inner.span))
            case ast.Block(kind=kind, span=span):
                assert covered(text, span).startswith(kind.text)
                assert covered(text, span).endswith(("}", '"'))


@pytest.mark.parametrize(
    "statement",
    [
        "param tp: int(1..8) = 4",
        'block "x" on tp, cp { a = 1 }',
        "key = f(1, [2])",
        "override key = 60 GiB",
        '"model.*.{q,k}" -> colwise',
        'override ["a", "b"] -> unit(x = true)',
        "auto",
        "a.b <= 3 h",
    ],
)
def test_the_span_of_a_statement_is_its_own_text(statement: str) -> None:
    text = f"# c\n\nx {{\n  {statement}  # d\n}}"
    (block,) = parsed(text).statements
    assert isinstance(block, ast.Block)
    assert covered(text, block.body[0].span) == statement


def test_a_part_of_a_pattern_can_be_pointed_at() -> None:
    text = 'b {\n  "model.layers.{0..3}.{q,kk}_proj" -> colwise\n}'
    (block,) = parsed(text).statements
    assert isinstance(block, ast.Block)
    rule = block.body[0]
    assert isinstance(rule, ast.Rule)
    pattern = rule.patterns[0]
    start = pattern.value.index("kk")
    assert covered(text, pattern.part(start, start + 2)) == "kk"


def test_a_tab_is_one_column() -> None:
    (setting,) = parsed("\t\tk = 1").statements
    assert setting.span == Span("x.plan", 1, 3, 1, 8)


def test_an_assignment_has_a_dotted_target() -> None:
    assignment, problems = parse_assignment(SourceFile("--set", "optimizer.kind = adamw(lr = 1e-3)"))
    assert problems == ()
    assert assignment is not None
    assert assignment.target == ast.Name("optimizer.kind", Span("--set", 1, 1, 1, 15))
    assert isinstance(assignment.value, ast.Call)
