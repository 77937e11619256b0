"""Which device, and which surrogate, a name means."""

import pytest
import torch
from test_kernels import WeightedOverlap

from scope_torch.errors import InputError
from scope_torch.model.devices import joint_class, pick_device, surrogate_class
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.model.tensor_surrogate import TensorSurrogate

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", [None, "auto"])
def test_cuda_only_if_present_and_theta_is_large(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device(name, 23**4) == CUDA
    assert pick_device(name, 23**3) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device(name, 23**4) == CPU


def test_a_device_that_is_named_is_taken():
    assert pick_device("cuda", 4) == CUDA
    assert pick_device(CPU, 23**5) == CPU


def test_the_surrogate_follows_the_device():
    assert surrogate_class("auto", CPU) is surrogate_class("incremental", CUDA) is QuerySurrogate
    assert surrogate_class("auto", CUDA) is surrogate_class("tensor", CPU) is TensorSurrogate
    with pytest.raises(InputError, match="surrogate='gpu' must be incremental, tensor or auto"):
        surrogate_class("gpu", CPU)
    kernel = HammingMatern52Kernel()
    assert joint_class("auto", CUDA, kernel) is TensorJointSurrogate
    assert joint_class("auto", CPU, kernel) is JointSurrogate
    assert joint_class("tensor", CUDA, WeightedOverlap()) is JointSurrogate
