"""Shared parts of the rules: the rule type, groups of findings, and remedies."""
