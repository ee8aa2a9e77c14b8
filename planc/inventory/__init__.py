"""The model as data: what modules, parameters, heads and ties it has, without its weights."""
