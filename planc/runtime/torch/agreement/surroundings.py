"""Everything outside its plan that determines a rank's arithmetic: versions, code, environment, device."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import planc
from planc.graph.graph import Graph
from planc.graph.ops import Mixture
from planc.graph.sources import sources_of
from planc.runtime.ranks.reads import Reads

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")

VARIABLES = (
    "BLIS_NUM_THREADS",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_LINALG_PREFER_CUSOLVER",
    "TRITON_F32_DEFAULT",
    "USE_HUB_KERNELS",
)
"""Variables that choose kernels, precisions or the order of sums, and whose effect can't be queried.

Threads (OMP_NUM_THREADS) and ATEN_CPU_CAPABILITY are not here: their effects are settings.
Interfaces, caches, logs and memory are each machine's own.
"""


def note_surroundings(reads: Reads, graph: Graph, *, device: torch.device) -> None:
    """Add all of these to a record."""
    for name, value in _versions(graph):
        reads.add("version", name, value)
    note_code(reads, Path(planc.__file__).parent)
    for name in VARIABLES:
        if name in os.environ:
            reads.add("variable", name, os.environ[name])
    for name, value in _settings(device):
        reads.add("setting", name, value)


def _versions(graph: Graph) -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} ({sys.implementation.name}, {platform.machine()})"
    yield "planc", planc.__version__
    sources = {type(op.source) for op in sources_of(graph) if not isinstance(op.source, Mixture)}
    of_sources = sorted({name for source in sources for name in source.libraries})
    for name in (*_LIBRARIES, *of_sources):
        if (version := _version(name)) is not None:
            yield name, version


def _version(name: str) -> str | None:
    """An imported module's own version; the installed one for packages that a run imports later."""
    if name in sys.modules:
        return str(sys.modules[name].__version__)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def note_code(reads: Reads, folder: Path) -> None:
    """Add every Python source below a package's directory."""
    for path in sorted(folder.rglob("*.py")):
        reads.add_content("code", path.relative_to(folder.parent).as_posix(), path.read_bytes())


def _settings(device: torch.device) -> Iterator[tuple[str, str]]:
    yield "PyTorch's build", hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:12]
    yield "the CPU capability", torch.backends.cpu.get_cpu_capability()
    backends = (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn)
    yield "the float32 precision", ", ".join(str(backend.fp32_precision) for backend in backends)
    yield "deterministic algorithms", str(torch.are_deterministic_algorithms_enabled())
    yield "the default dtype", str(torch.get_default_dtype())
    if device.type != "cuda":
        yield "the device", device.type
        # The order of sums depends on it.
        yield "the number of threads", str(torch.get_num_threads())
        yield "oneDNN", str(torch.backends.mkldnn.enabled)
        return
    nccl: Any = torch.cuda.nccl
    cudnn: Any = torch.backends.cudnn
    yield "the device", torch.cuda.get_device_name(device)
    yield "the compute capability", str(torch.cuda.get_device_capability(device))
    yield "CUDA", str(torch.version.cuda)
    yield "cuDNN", f"{cudnn.version()}{'' if cudnn.enabled else ', disabled'}"
    yield "NCCL", str(nccl.version())
    yield "cuDNN's benchmark and deterministic", f"{cudnn.benchmark}, {cudnn.deterministic}"
