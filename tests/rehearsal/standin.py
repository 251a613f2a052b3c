"""A device that is not the CPU, for tests: it refuses what CUDA refuses, and computes on the CPU.

PyTorch keeps a device type free for others (PrivateUse1), and `_setup_privateuseone_for_python_backend` (experimental)
lets Python claim it. That gives the name "standin", what `torch.accelerator`, autograd and `torch.manual_seed` ask of a
device, and factories such as `torch.zeros(3, device="standin")`. The tensors themselves are a subclass that holds a
CPU tensor; PyTorch hands every operator on them to `__torch_dispatch__`, below autograd. Kernels registered for
PrivateUse1 alone would not do: where autograd keeps a result for the backward pass it copies the tensor in C++, and a
tensor without memory of its own loses what it holds.

    with standin.present():           # else `torch.accelerator.is_available()` stays False
        torch.zeros(3, device="standin") + torch.zeros(3)      # RuntimeError, as with CUDA

Not like CUDA: nothing runs later than it is called, attention is written out, and rounding is the CPU's.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
aten = torch.ops.aten
_CPU = torch.device("cpu")
_PLACED = {aten.copy_.default, aten._to_copy.default}
"""Operators between devices."""
_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Their indices may be on the CPU where the first argument is on the device; never the other way round."""


class StandInTensor(Tensor):
    """A tensor "on" the device. `kept` has its numbers."""

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> "StandInTensor":
        shape = {"strides": kept.stride(), "storage_offset": kept.storage_offset(), "dtype": kept.dtype}
        made = Tensor._make_wrapper_subclass(cls, kept.size(), **shape, device=torch.device(NAME, 0))
        made.kept = kept
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def untyped_storage(self) -> Any:  # its address tells tensors that share memory
        return self.kept.untyped_storage()

    def tolist(self) -> Any:  # PyTorch refuses subclasses, not devices
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:
        return f"StandInTensor({self.kept})"


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    if _is_composite(func):
        return func.decompose(*args, **kwargs)  # in inference mode; otherwise autograd has done so
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    _check_devices(func, args, tensors)
    if kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    with _own_random_numbers(func, kwargs):
        out = func(*_map(_unwrap, args), **_map(_unwrap, kwargs))
    if func is aten.copy_.default and not isinstance(args[0], StandInTensor):
        return args[0]
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type != NAME:
        assert func is aten._to_copy.default, f"{func}: a result on another device"
        return out
    # As in C++: within inference mode, a view of a tensor from outside it is one from outside it, too.
    inside = args[0].is_inference() if _is_view(func) else torch.is_inference_mode_enabled()
    with torch.inference_mode(inside) if inside != torch.is_inference_mode_enabled() else contextlib.nullcontext():
        out = _map(lambda x: StandInTensor(x) if isinstance(x, Tensor) else x, out)
    result = return_and_correct_aliasing(func, args, kwargs, out)
    for x in tensors:
        assert not isinstance(x, StandInTensor) or x.shape == x.kept.shape, f"{func} changed a shape in place"
    return result


@functools.cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@functools.cache
def _is_view(func: Any) -> bool:
    return any(x.alias_info is not None and not x.alias_info.is_write for x in func._schema.arguments)


def _map(fn: Any, x: Any) -> Any:
    """`fn` of everything in lists, tuples and dicts; several times as fast as PyTorch's tree_map."""
    if isinstance(x, list | tuple):
        return type(x)([_map(fn, y) for y in x])
    return {name: _map(fn, y) for name, y in x.items()} if isinstance(x, dict) else fn(x)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)


def _unwrap(x: Any) -> Any:
    if isinstance(x, torch.device):
        return _CPU
    return x.kept if isinstance(x, StandInTensor) else x


def _check_devices(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """CUDA's rules: all on one device, but for numbers in element-wise operators and indices on the CPU."""
    strangers = [x for x in tensors if not isinstance(x, StandInTensor)]
    if not strangers or func in _PLACED:
        return
    if func in _INDEXED:
        if isinstance(args[0], StandInTensor):
            indices = {id(x) for x in _tensors(args[1])}
            strangers = [x for x in strangers if id(x) not in indices and x.ndim]
        if not strangers:
            return
        raise RuntimeError(f"{func}: indices should be either on cpu or on the same device as the indexed tensor")
    written = [args[i] for i, a in enumerate(func._schema.arguments[: len(args)]) if a.is_write]
    numbers = torch.Tag.pointwise in func.tags and all(x.ndim == 0 for x in strangers)
    if numbers and not any(x is y for x in strangers for y in written):
        return
    raise RuntimeError(f"{func}: Expected all tensors to be on the same device, but found {NAME}:0 and cpu")


# -- random numbers

_state = torch.Generator().manual_seed(0).get_state()
"""Of the device's own generator."""


@contextlib.contextmanager
def _own_random_numbers(func: Any, kwargs: Any) -> Iterator[None]:
    """What the operator draws comes from the device's generator; one of the CPU's is refused."""
    global _state  # noqa: PLW0603
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(_state)
    try:
        yield
    finally:
        _state = torch.get_rng_state()
        torch.set_rng_state(before)


# -- the device's module, torch.standin

_present = _has_bfloat16 = False


class _Module:
    """What CUDA's module has and PyTorch or this package asks for."""

    def is_available(self) -> bool:
        return _present

    def is_initialized(self) -> bool:
        return _present

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return int(_present)

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        if torch.device(NAME, device).index != 0:
            raise RuntimeError("invalid device ordinal")

    def manual_seed_all(self, seed: int) -> None:
        global _state  # noqa: PLW0603
        _state = torch.Generator().manual_seed(seed).get_state()

    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return _state.clone()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        global _state  # noqa: PLW0603
        if isinstance(state, StandInTensor):
            raise TypeError("RNG state must be a torch.ByteTensor")
        _state = state.clone()

    def get_device_name(self, device: Any = None) -> str:
        return "a stand-in"

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return _has_bfloat16

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return _present

    def has_primary_context(self, device: int) -> bool:
        return _present

    def is_built(self) -> bool:
        return True


def _factory(func: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Tensor:
        if not _present:
            raise RuntimeError(f"no {NAME} device is present")
        if kwargs.get("pin_memory"):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        with _own_random_numbers(func, kwargs):
            return StandInTensor(func(*args, **{**kwargs, "device": _CPU}))

    return made


def _factories() -> Iterator[Any]:
    """Operators that make a tensor of no other."""
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or not hasattr(aten, packet):
            continue
        func = getattr(getattr(aten, packet), overload or "default", None)
        if func is None or any(word in name for word in ("sparse", "quantized", "from_file", "dep_token", "cudnn")):
            continue
        kinds = [str(argument.type) for argument in func._schema.arguments]
        has_device = any(argument.name == "device" for argument in func._schema.arguments)
        returns = [str(result.type) for result in func._schema.returns]
        if has_device and returns == ["Tensor"] and not any("Tensor" in kind for kind in kinds):
            yield func


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """`torch.tensor([1], device="standin")` ends here and not in `copy_`."""
    return _run(aten.copy_.default, (target, source), {})


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    if isinstance(tensor, StandInTensor):
        raise RuntimeError(f"cannot pin a tensor on {NAME}; only dense CPU tensors can be pinned")
    return tensor.clone()


# -- autocast: CUDA's lists, as far as this package and the encoders of transformers use them

_AUTOCAST = "AutocastPrivateUse1"
_IN_BFLOAT16 = ("matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "linear", "scaled_dot_product_attention", "einsum")
"""einsum is not on CUDA's list, but the products that it is made of are."""
_IN_FLOAT32 = ("softmax.int", "log_softmax.int", "layer_norm", "exp", "log", "log1p", "softplus", "cross_entropy_loss")


def _autocast(func: Any, dtype: torch.dtype) -> Any:
    def cast(x: Any) -> Any:
        is_cast = isinstance(x, StandInTensor) and x.is_floating_point() and x.dtype != torch.float64
        return x.to(dtype) if is_cast else x

    def run(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _AUTOCAST))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            args, kwargs = _map(cast, (args, kwargs))
            return func(*args, **kwargs)

    return run


_library, _others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
"""What is registered stays so for as long as they live."""


def _register() -> None:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hooks())
    for func in _factories():
        _library.impl(func, _factory(func), "PrivateUse1")
    _library.impl("_copy_from", _copy_from, "PrivateUse1")
    _others.fallback(torch.library.fallthrough_kernel, _AUTOCAST)
    for names, dtype in ((_IN_BFLOAT16, torch.bfloat16), (_IN_FLOAT32, torch.float32)):
        for name in names:
            packet, _, overload = name.partition(".")
            func = getattr(getattr(aten, packet), overload or "default")
            _library.impl(func, _autocast(func, dtype), _AUTOCAST)


_register()


@contextlib.contextmanager
def present(*, bfloat16: bool = False) -> Iterator[None]:
    """The device is there, with or without bfloat16."""
    global _present, _has_bfloat16
    swaps, before = torch.__future__.get_swap_module_params_on_conversion(), (_present, _has_bfloat16)
    # Autograd makes a thread for each device at the first backward pass of a process, which may have been before this
    # device was registered; without threads it needs none.
    with pytest.MonkeyPatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
        patch.setattr(Tensor, "pin_memory", _pin_memory)
        # Python can't offer these through the hooks.
        patch.setattr(torch.accelerator, "synchronize", lambda device=None: None)
        patch.setattr(torch.accelerator, "max_memory_allocated", lambda device=None: 1 << 20)
        patch.setattr(torch.accelerator, "get_memory_info", lambda device=None: (1 << 30, 2 << 30))
        # CUDA's parameters keep their identity when a module is moved, and with it shared weights.
        torch.__future__.set_swap_module_params_on_conversion(True)
        _present, _has_bfloat16 = True, bfloat16
        try:
            yield
        finally:
            _present, _has_bfloat16 = before
            torch.__future__.set_swap_module_params_on_conversion(swaps)
