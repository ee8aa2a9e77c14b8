"""Parts that commands share: arguments, exit codes, and output."""
