"""Tensor-parallel rules for a model that brings none: found by search, judged by planc's own checks."""
