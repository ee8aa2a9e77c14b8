"""Prints the catalogue: every fault, what keeps it from a run, and the tests that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.catalogue.declared import HERE, exists, faults, plans, proof_of, read_plan


def lines() -> Iterator[str]:
    """A line for each fault, then how many are caught."""
    counts: Counter[str] = Counter()
    for fault in faults():
        proof = proof_of(fault)
        shown = proof is not None and all(
            exists(test) for test in proof.tests if "test_catalogue" not in test
        )
        how = proof.how.value if proof is not None and shown else "NOT CAUGHT"
        path = HERE / "rules" / f"{fault.id}.plan"
        codes = f" ({' '.join(read_plan(path).codes)})" if path.exists() else ""
        counts[how] += 1
        yield f"{fault.id}  {fault.name:18}  {how + codes:24}  {' '.join(proof.tests) if proof else ''}"
    total = sum(counts.values())
    yield ""
    yield f"caught: {total - counts['NOT CAUGHT']} of {total}"
    yield "; ".join(f"{count} {how}" for how, count in counts.most_common())
    yield f"beyond the catalogue: {len(plans('wild'))} plans with the codes that they must give"


if __name__ == "__main__":
    print(*lines(), sep="\n")
