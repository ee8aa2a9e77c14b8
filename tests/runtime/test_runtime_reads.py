"""What ranks read, compared: who differs, in what, and what is said of it."""

from __future__ import annotations

from planc.runtime.ranks.reads import (
    Entry,
    Reads,
    describe,
    deviation,
    deviation_of,
    differences,
    digest,
    majority,
)

A = Entry("file", "data/a.txt", "a" * 64)
B = Entry("file", "data/b.txt", "b" * 64)
B_CHANGED = Entry("file", "data/b.txt", "c" * 64)
TOKENS, TOKENS_CHANGED = Entry("tokens", "data", "1" * 64), Entry("tokens", "data", "2" * 64)


def test_most_ranks_are_right_and_among_equals_the_first() -> None:
    assert majority(["x", "y", "y"]) == 1
    assert majority(["x", "y"]) == 0
    assert majority(["x", "y", "z", "y", "x"]) == 0


def test_a_digest_knows_no_order_but_every_entry() -> None:
    assert digest([A, B]) == digest([B, A])
    assert len({digest(one) for one in ([A], [A, B], [A, B_CHANGED], [])}) == 4


def test_a_plans_text_may_differ_where_its_graph_does_not() -> None:
    graph = Entry("graph", "compiled plan", "0" * 64)
    texts = [Entry("source", "x.plan", value * 64) for value in "12"]
    assert digest([graph, texts[0]]) == digest([graph, texts[1]])
    assert [one.name for one in differences([graph, texts[0]], [graph, texts[1]])] == ["x.plan"]


def test_tokens_are_named_only_where_no_file_is() -> None:
    found = differences([A, B, TOKENS], [A, B_CHANGED, TOKENS_CHANGED])
    assert [one.name for one in found] == ["data/b.txt"]
    assert [one.kind for one in differences([A, TOKENS], [A, TOKENS_CHANGED])] == ["tokens"]


def test_ranks_that_differ_alike_are_named_together_by_machine() -> None:
    found = [
        deviation(rank, host, [A, B_CHANGED], [A, B])
        for rank, host in ((4, "node-b"), (5, "node-b"), (6, "node-c"))
    ]
    message, help = describe([deviation_of(one.data()) for one in found], world_size=8)
    assert message == (
        "ranks differ: `data/b.txt` is sha256 cccccccccccc on ranks 4, 5 (node-b) and rank 6 (node-c), "
        "and sha256 bbbbbbbbbbbb on the other 5 ranks"
    )
    assert help == "give every machine the same files, for example on a shared file system"


def test_what_a_rank_has_more_or_less_is_said() -> None:
    more, _ = describe([deviation(1, "b", [A, B], [A])], world_size=2)
    assert more.endswith("is sha256 bbbbbbbbbbbb on rank 1 (b), and not read on the other rank")
    variable = Entry("variable", "NCCL_ALGO", "Ring")
    less, _ = describe([deviation(1, "b", [], [variable])], world_size=2)
    assert less == "ranks differ: `NCCL_ALGO` is unset on rank 1 (b), and Ring on the other rank"


def test_of_many_differences_some_are_named_and_all_counted() -> None:
    many = [Entry("file", f"data/{number}.txt", "a" * 64) for number in range(30)]
    one = deviation(1, "b", many, [])
    assert (len(one.differences), one.num_more) == (8, 22)
    assert describe([one], world_size=2)[0].endswith("; and 22 more")


def test_a_file_that_changed_between_two_reads_has_two_entries() -> None:
    reads = Reads([A, B, B, B_CHANGED])
    assert [one.name for one in reads.take()] == ["data/a.txt", "data/b.txt", "data/b.txt (read again)"]
    assert reads.take() == ()
