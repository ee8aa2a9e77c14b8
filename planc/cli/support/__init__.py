"""What commands share: arguments, exit codes, and output."""
