"""Kernels on configurations; this path is the `_target_` of kernels in config files."""

from scope_torch.model.kernels import (
    HammingKernel,
    HammingMatern52Kernel,
    HammingRBFKernel,
    describe_kernel,
    hamming_distance,
    kernel_matrix,
)

__all__ = [
    "HammingKernel",
    "HammingMatern52Kernel",
    "HammingRBFKernel",
    "describe_kernel",
    "hamming_distance",
    "kernel_matrix",
]
