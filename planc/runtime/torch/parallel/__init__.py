"""Process groups, mesh, tensor parallelism, FSDP2, whole replicas, and their gradients."""
