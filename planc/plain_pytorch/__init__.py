"""A plan's graph as a script of PyTorch's own calls, which needs no planc."""
