"""How much memory this process has needed.

    python3 -c "from common.core.memory import *; print(peak_memory())"
"""

import sys

from common.core.provenance import lines_of


def peak_memory() -> dict[str, int]:
    """The most bytes held at once so far: "resident" ones, and those of tensors on a "device".

    What Linux, or this process's torch, does not tell of is left out.
    """
    resident = [line.split()[1] for line in lines_of("/proc/self/status")
                if line.startswith("VmHWM:")]
    torch = sys.modules.get("torch")
    device = torch.cuda.max_memory_allocated() if torch and torch.cuda.is_initialized() else 0
    return ({"resident": 1024 * int(resident[0])} if resident else {}) | (
        {"device": device} if device else {})
