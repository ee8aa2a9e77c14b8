"""What a plan needs, in closed form: memory per rank, and what each rank sends in a step."""
