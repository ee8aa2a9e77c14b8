"""Metrics, logs, phase times and profiles."""
