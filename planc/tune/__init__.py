"""Searches the plans of a model for a number of devices: every mesh, judged by estimates and checks."""
