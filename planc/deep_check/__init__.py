"""`planc check --deep`: the rehearsal's findings, and its figures compared with the estimate."""
