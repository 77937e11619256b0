"""Where the algebra runs (docs/gpu.md)."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel

from scope_torch.errors import InputError
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingKernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.model.tensor_surrogate import TensorSurrogate

LEAST_FOR_CUDA = 100_000  # configurations; below, launches cost what the CPU takes (docs/gpu.md)


def pick_device(device: torch.device | str | None, num_configurations: int) -> torch.device:
    """The device of a name.

    Args:
        device: A device; `auto` or None: CUDA if it is present and Theta has at least 100,000
            configurations, otherwise the CPU.
        num_configurations: |Theta|.
    """
    if device in (None, "auto"):
        large = num_configurations >= LEAST_FOR_CUDA
        device = "cuda" if large and torch.cuda.is_available() else "cpu"
    return torch.device(device)


def surrogate_class(name: str, device: torch.device) -> type[QuerySurrogate]:
    """The per-query surrogate of a name; all give the same posterior, up to rounding.

    Args:
        name: `incremental` (numpy, on the CPU), `tensor` (one batch on the device), or `auto`:
            tensor unless the device is the CPU.
        device: Where the algebra over Theta runs.

    Raises:
        InputError: If the name is unknown.
    """
    known = {"incremental": QuerySurrogate, "tensor": TensorSurrogate}
    known["auto"] = QuerySurrogate if device.type == "cpu" else TensorSurrogate
    if name not in known:
        raise InputError(f"surrogate={name!r} must be incremental, tensor or auto")
    return known[name]


def joint_class(name: str, device: torch.device, kernel: Kernel) -> type[JointSurrogate]:
    """The joint surrogate of a name, see `surrogate_class`; another kernel has no tensor model."""
    tensor = surrogate_class(name, device) is TensorSurrogate
    return TensorJointSurrogate if tensor and isinstance(kernel, HammingKernel) else JointSurrogate
