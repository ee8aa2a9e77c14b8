"""What a bound plan needs, whether its device has it, and which similar plans do with less."""
