"""Marks the folder for editable installs; a wheel carries `plan.lark` inside the package."""
