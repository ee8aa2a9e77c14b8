"""What planc's views print of a plan: one function for each figure, one name, one way to write it."""
