"""One package for each way to execute a graph."""
