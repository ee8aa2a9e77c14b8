"""planc from Python: check, compile and run plans, on the same paths as the commands."""
