"""Where a rank computes: CPU or which GPU, how many threads, and the backend for all ranks."""

import ctypes
import os
import socket

import torch
import torch.distributed as dist

from common.core.failures import UsageError

# The numbers of two options in GNU's malloc.h, and "never" for both: as large as they may be.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**31 - 1


def count_gpus() -> int:
    return torch.cuda.device_count()


def visible_gpus() -> list[str]:
    """The GPUs that this process sees, in torch's order, by names that hold on the whole machine.

    Initialises CUDA where there are any.
    """
    count = count_gpus()
    try:
        uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
    except RuntimeError:  # a driver that CUDA refuses; who chooses such a GPU is told
        uuids = [""] * count
    return [f"{uuid}/{uuids[:place].count(uuid)}"  # some drivers give all GPUs the same UUID
            for place, uuid in enumerate(uuids)]


def choose_device(wanted: str, index: int, gpus_suffice: bool) -> torch.device:
    """The device of a rank: a CPU, or GPU `index` of those that it sees, modulo their number.

    `auto` gives every rank a GPU of its own, where they suffice, or all of them the CPU: ranks that
    compute on different hardware round differently and drift apart. With `cuda` ranks share GPUs
    where there are fewer. Raises UsageError when `cuda` cannot be had.
    """
    if wanted == "cuda" and not count_gpus():
        raise UsageError(f"--device cuda, but {socket.gethostname()} has no GPU that torch can use")
    if wanted == "cpu" or (wanted == "auto" and not gpus_suffice):
        return torch.device("cpu")
    index %= count_gpus()
    torch.cuda.set_device(index)
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return torch.device("cuda", index)


def choose_backend(wanted: str, device: str, gpus_suffice: bool) -> str:
    """`auto` is NCCL when every rank has a GPU of its own, else gloo.

    Raises UsageError for an NCCL that cannot work: with ranks that share a GPU, or compute on CPUs.
    """
    can_nccl = gpus_suffice and device != "cpu" and dist.is_nccl_available()
    if wanted == "nccl" and not can_nccl:
        why = ("--device cpu is given" if device == "cpu" else "not every rank has a GPU of its own"
               if not gpus_suffice else "this torch was built without NCCL")
        raise UsageError(f"--backend nccl requires a GPU for every rank, but {why}: leave "
                         "--backend out, or give gloo")
    return "nccl" if wanted != "gloo" and can_nccl else "gloo"


def use_threads(wanted: int | None, ranks_here: int) -> int:
    """Sets, and returns, the intra-op threads: an equal share of the cores, or what is wanted."""
    threads = wanted or max(1, len(os.sched_getaffinity(0)) // ranks_here)
    torch.set_num_threads(threads)
    return threads


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that a step frees, for the next step; on a CPU.

    The C library gives large blocks back at once, and the kernel must clear them page by page when
    they are wanted again: a sixth of VGG-11's step. False where the library is not GNU's.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(set_option(option, KEPT_BYTES) for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD))
