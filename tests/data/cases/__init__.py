"""Small cases of what users of other tools report, each with its right answer: `python -m tests.data.cases`.

No answer comes from planc: ids and masks are those of transformers, texts are counted by hand.
"""
