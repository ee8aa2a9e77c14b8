"""Data that no file holds: a document computed from its index, and a change of rows that a file holds."""

from random import Random

from planc.extend import data_source, row_transform


@data_source("sums")
class Sums:
    """Additions, each from its own index: the same on any rank, in any order, in any run."""

    def __init__(self, *, number: int, digits: int = 3):
        self.number, self.digits = number, digits

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        random = Random(index)
        one, other = (random.randrange(10**self.digits) for _ in range(2))
        return f"{one} + {other} = {one + other}"


@row_transform("as_question")
def as_question(row, *, least: int = 0):
    """A row of two numbers as text; none for a small one."""
    if row["sum"] < least:
        return None
    return {"text": f"Which two numbers make {row['sum']}? {row['one']} and {row['other']}."}
