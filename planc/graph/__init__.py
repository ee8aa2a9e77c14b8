"""The execution graph: typed ops with effects, verified after every pass, hashed, written as text and JSON."""
