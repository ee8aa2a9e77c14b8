"""What `planc check --deep` adds: the rehearsal's findings, and its figures beside the estimate's."""
