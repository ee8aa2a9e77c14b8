"""The execution graph: typed ops with effects, verified after every pass, hashed, as text and as JSON."""
