"""A device that is not there: tensors say that they are on `gpu:0`, and their data stay on the CPU.

So the way of data to and from a GPU is tested on every machine. Inside `with PretendGpu() as log:`
`device="gpu"` can be used wherever torch takes a device, and `log` reports:

- `errors`: operations that CUDA has no kernel for (products of integer matrices), and operands on
  two devices, which CUDA refuses;
- `launches`, `waits` of the host, `copies` and `bytes`, for each operation, and `bytes_to_cpu`;
- `seconds()`: a roofline of these on an H200-class card.

Additions with repeated indices have no fixed order on CUDA. Here they are made in a random order,
another one each time: what depends on the order shows as a difference between runs.

Not modelled: the speed of a kernel, its occupancy, atomics, the bus to the CPU. Views cost nothing.
Built on torch's experimental Python backend for PrivateUse1 (torch 2.10).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

IS_AVAILABLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
if IS_AVAILABLE:
    backend_registration._setup_privateuseone_for_python_backend("gpu")
    # `torch.random.fork_rng`, which Ax calls, asks every device; this one has no generator.
    torch.gpu.get_rng_state = lambda _device=0: torch.get_rng_state()  # pyright: ignore
    torch.gpu.set_rng_state = lambda *_: None  # pyright: ignore

FLOATS_ONLY = {
    "mm", "bmm", "addmm", "addmv", "mv", "dot", "vdot", "baddbmm", "addbmm", "linalg_vecdot",
    "linalg_cholesky_ex", "linalg_solve_triangular", "linalg_inv_ex", "_linalg_solve_ex",
    "_linalg_eigh", "linalg_eigh", "_cdist_forward",
}  # fmt: skip
VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze",
    "squeeze", "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind",
    "_reshape_alias", "diagonal", "unfold", "lift_fresh",
}  # fmt: skip
WAITS = {
    "_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "_unique2", "unique_dim",
    "repeat_interleave",
}  # fmt: skip
MAY_MIX_DEVICES = {"index", "index_put", "_index_put_impl"}  # indices may be on the CPU


class Log:
    """What the device was asked to do."""

    def __init__(self) -> None:
        self.launches, self.waits, self.copies = Counter[str](), Counter[str](), Counter[str]()
        self.bytes, self.bytes_to_cpu = Counter[str](), 0
        self.errors: list[str] = []

    def seconds(self, bandwidth: float = 4e12, launch: float = 4e-6, wait: float = 15e-6) -> float:
        """Modelled time: bytes over bandwidth (bytes/s), launches and waits (seconds each).

        A copy to the device costs as much as a launch, one on the device is a launch.
        """
        return (
            self.bytes.total() / bandwidth
            + (self.launches.total() + self.copies["to device"]) * launch
            + self.waits.total() * wait
        )


class OnGpu(torch.Tensor):
    """A tensor that says it is on the device; `data_` is its CPU tensor."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, log: Log) -> OnGpu:
        layout = {"strides": data.stride(), "storage_offset": data.storage_offset()}
        kind = {"dtype": data.dtype, "layout": data.layout, "device": torch.device("gpu", 0)}
        return torch.Tensor._make_wrapper_subclass(cls, data.size(), **layout, **kind)

    def __init__(self, data: torch.Tensor, log: Log) -> None:
        self.data_, self.log_ = data, log

    def __repr__(self) -> str:
        return f"OnGpu({self.data_})"

    def tolist(self) -> Any:
        self.log_.waits["tolist"] += 1
        return self.data_.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a device tensor to numpy; use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        found = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, OnGpu)]
        return Runner(found[0].log_).run(func, args, kwargs or {})


def _plain(x: Any) -> Any:
    return x.data_ if isinstance(x, OnGpu) else x


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "gpu"


class Runner:
    """Runs an operation on the CPU, and notes what it would be on the device."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.split("::")[1]
        name = name if name.endswith("__") else name.rstrip("_")
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        here = [x for x in tensors if isinstance(x, OnGpu)]
        if not here and not _is_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        if name == "copy":
            return self._copy(func, args, all_here=len(here) == len(tensors))
        if name == "_to_copy":
            return self._to_copy(func, args[0], kwargs)
        self._check(func, name, tensors, here)
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
        if "device" in plain_kwargs:
            plain_kwargs["device"] = "cpu"
        plain_kwargs.pop("pin_memory", None)
        if name == "index_add":
            plain_args = _in_random_order(*plain_args)
        out = func(*plain_args, **plain_kwargs)
        self._count(name, here, out)
        same = {id(x.data_): x for x in here}  # in place, or out=

        def wrap(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or isinstance(x, OnGpu):
                return x
            return same[id(x)] if id(x) in same else OnGpu(x, self.log)

        return tree_map(wrap, out)

    def _check(self, func: Any, name: str, tensors: list[Any], here: list[Any]) -> None:
        strangers = [tuple(x.shape) for x in tensors if not isinstance(x, OnGpu) and x.dim() > 0]
        if here and strangers and name not in MAY_MIX_DEVICES:
            self.log.errors.append(f"{func}: operands on two devices, {strangers} on the CPU")
        kinds = [x.dtype for x in here]
        if name in FLOATS_ONLY and not all(kind.is_floating_point for kind in kinds):
            self.log.errors.append(f"{func}: no CUDA kernel for {kinds}")

    def _count(self, name: str, here: list[Any], out: Any) -> None:
        masks = name == "index" and any(x.dtype == torch.bool for x in here)
        self.log.waits[name] += name in WAITS or masks
        if name in VIEWS:
            return
        self.log.launches[name] += 1
        written = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
        touched = [x for x in here if 0 not in x.stride()] + written
        self.log.bytes[name] += sum(x.numel() * x.element_size() for x in touched)

    def _copy(self, func: Any, args: Any, all_here: bool) -> Any:
        kind = "on device" if all_here else "to device" if isinstance(args[0], OnGpu) else "to host"
        self.log.copies[kind] += 1
        self.log.waits["to host"] += kind == "to host"
        self.log.bytes_to_cpu += (kind == "to host") * args[0].numel() * args[0].element_size()
        if all_here:
            self._count("copy", list(args[1:2]), args[0])
        func(*map(_plain, args[:2]), *args[2:])
        return args[0]

    def _to_copy(self, func: Any, x: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        out = func(_plain(x), **{name: v for name, v in kwargs.items() if name != "device"})
        if not isinstance(x, OnGpu):
            self.log.copies["to device"] += 1
            return OnGpu(out, self.log)
        if device is not None and not _is_gpu(device):
            self.log.copies["to host"] += 1
            self.log.waits["to host"] += 1
            self.log.bytes_to_cpu += out.numel() * out.element_size()
            return out
        self._count("_to_copy", [x], out)
        return OnGpu(out, self.log)


def _in_random_order(to: Any, dim: int, index: Any, source: Any, *others: Any) -> tuple[Any, ...]:
    order = torch.randperm(len(index))
    return to, dim, index[order], source.index_select(dim, order), *others


class _Dispatch(TorchDispatchMode):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._runner = Runner(log)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self._runner.run(func, args, kwargs or {})


class _Factories(TorchFunctionMode):
    """torch.tensor and the like copy below the dispatcher's reach."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.new_tensor and isinstance(args[0], OnGpu):
            kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            func, args = torch.tensor, args[1:]
        if func in (torch.tensor, torch.as_tensor) and _is_gpu(kwargs.get("device")):
            del kwargs["device"]
            out = func(*args, **kwargs)
            self._log.copies["to device"] += 1
            return out if isinstance(out, OnGpu) else OnGpu(out, self._log)
        return func(*args, **kwargs)


class PretendGpu:
    """Inside, `device="gpu"` is the device that is not there."""

    def __enter__(self) -> Log:
        log = Log()
        self._modes = (_Dispatch(log), _Factories(log))
        for mode in self._modes:
            mode.__enter__()
        return log

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
