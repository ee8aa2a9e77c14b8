"""A machine's equipment, compared with what planc and a plan need: findings as data."""
