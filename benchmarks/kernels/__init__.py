"""What the fused kernels bring on a GPU."""
