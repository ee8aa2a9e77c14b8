"""What a machine has, against what planc and a plan need of it: findings as data."""
