"""The steps of benchmarks/gpu_check.py, a row each: a command with a time limit of its own."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "{folder}"  # in a command: the row's own, for what it leaves
SPEEDS = {
    "speed: course": ("course-float32", "course-tf32", "compiled-float32", "compiled-bf16"),
    "speed: Part One": ("project-float32", "project-tf32", "project-bf16", "project_compiled-bf16",
                        "project_graphed-float32", "project_graphed-bf16"),
    "speed: Lightning": ("lightning-float32", "lightning-tf32", "lightning-bf16",
                         "lightning_compiled-float32", "lightning_compiled-bf16"),
    "speed: model alone": ("resident_nchw-float32", "resident-float32", "resident-tf32",
                           "resident-bf16", "resident_compiled-float32", "resident_compiled-bf16",
                           "resident_graphed-float32", "resident_graphed-bf16")}
LONG_RECIPE = ("--epochs", "37", "--crop-padding", "4", "--cutout", "8")


@dataclass(frozen=True)
class GpuCheck:
    """A step: `lacking` says why it cannot be taken here; "" if it can."""

    name: str
    command: tuple[str, ...]
    seconds: float
    lacking: str = ""


@dataclass(frozen=True)
class GpuMachine:
    """The machine that rows depend on. Pretended, every row is tiny and computes on the CPU."""

    gpus: int
    data_dir: Path
    is_pretended: bool = False

    @property
    def device(self) -> str:
        return "cpu" if self.is_pretended else "cuda"

    @property
    def has_images(self) -> bool:
        return (self.data_dir / "train").is_dir() or any(self.data_dir.glob("cifar-10*"))

    def flags(self, iterations: int, pretended: int = 2) -> tuple[str, ...]:
        """The flags of a training: the workload, the device, and the number of iterations."""
        if self.is_pretended:
            return ("--workload", "spiral-mlp", "--device", "cpu", "--threads", "1",
                    "--max-iterations", str(pretended))
        workload = "cifar10-vgg11" if self.has_images else "digits-vgg11"
        return ("--workload", workload, "--data-dir", str(self.data_dir), "--device", "cuda",
                "--epochs", "1000", "--max-iterations", str(iterations))


def rows(machine: GpuMachine) -> list[GpuCheck]:
    """All steps, the longest last: too few minutes cut off the end."""
    tests = (sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/cuda")
    return [GpuCheck("tests/cuda", tests, 60, "" if machine.gpus else "they need a GPU"),
            *_speeds(machine), *_proofs(machine), *_ranks(machine), *_recipes(machine)]


def _speeds(machine: GpuMachine) -> list[GpuCheck]:
    workload = "cifar10-vgg11" if machine.has_images else "digits-vgg11"
    sizes = (("--workload", "digits-vgg11", "--batch-size", "2", "--steps", "1")
             if machine.is_pretended else
             ("--workload", workload, "--data-dir", str(machine.data_dir), "--batch-size", "256",
              "--steps", "60" if machine.has_images else "2"))
    no_lightning = "" if importlib.util.find_spec("lightning") else "Lightning is not installed"
    return [GpuCheck(name, (sys.executable, "benchmarks/gpu_checks/speeds.py", "--device",
                       machine.device, *sizes, "--output", f"{FOLDER}/speeds.json", "--turns",
                       *(_one_a_loop(turns) if machine.is_pretended else turns)),
                60, no_lightning if "Lightning" in name else "")
            for name, turns in SPEEDS.items()]


def _one_a_loop(turns: Sequence[str]) -> list[str]:
    """The first turn of each loop."""
    return list({turn.partition("-")[0]: turn for turn in reversed(turns)}.values())


def _proofs(machine: GpuMachine) -> list[GpuCheck]:
    steps, samples, batch = ("1", "16", "8") if machine.is_pretended else ("10", "130", "35")
    prove = (sys.executable, "scripts/prove.py", "--device", machine.device, "--workload",
             "spiral-mlp" if machine.is_pretended else "digits-vgg11", "--sizes", "1,2",
             "--steps", steps, "--samples", samples, "--batch-size", batch)
    strategies = "all-reduce" if machine.is_pretended else "gather-scatter,all-reduce,ddp"
    resume = (sys.executable, "benchmarks/gpu_checks/resume.py", FOLDER,
              *machine.flags(300, 60), "--checkpoint-every", "20")
    return [GpuCheck("proof in float64", (*prove, "--precisions", "float64", "--strategies",
                                          strategies), 50),
            GpuCheck("bits of virtual nodes", (*prove, "--bits", "--virtual-nodes", "4",
                                               "--precisions", "float32", "--strategies",
                                               "all-reduce"), 40),
            GpuCheck("kill and resume", resume, 40)]


def _ranks(machine: GpuMachine) -> list[GpuCheck]:
    """Two ranks: on one GPU over gloo, and each on its own over NCCL."""
    lacking = "" if machine.gpus > 1 else f"NCCL needs two GPUs, and there are {machine.gpus}"
    cluster = ("scripts/local_cluster.sh", "2")
    flags = (*machine.flags(40), "--output-dir", FOLDER)
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    shared = ("env", f"CUDA_VISIBLE_DEVICES={first}", *cluster)
    averaged = "gather-scatter,all-reduce"
    return [
        GpuCheck("2 ranks on one GPU: PartTwo", (*shared, "PartTwo", *flags, "--backend", "gloo",
                                                 "--sync", averaged), 30),
        GpuCheck("2 ranks on one GPU: PartThree", (*shared, "PartThree", *flags,
                                                   "--backend", "gloo"), 30),
        GpuCheck("2 GPUs over NCCL: PartTwo", (*cluster, "PartTwo", *flags, "--backend", "nccl",
                                               "--sync", f"{averaged},overlapped-all-reduce"), 40,
                 lacking),
        GpuCheck("2 GPUs over NCCL: PartThree", (*cluster, "PartThree", *flags,
                                                 "--backend", "nccl"), 30, lacking)]


def _recipes(machine: GpuMachine) -> list[GpuCheck]:
    """The recipe for 90 %, and the longer one for 92.8 %, of the test images."""
    lacking = "" if machine.is_pretended or machine.has_images else (
        f"{machine.data_dir} does not hold CIFAR-10")
    recipe = ("--data-dir", str(machine.data_dir), "--device", "cuda", "--tta", "--recipe",
              "record", "--precision", "bf16")
    flags = machine.flags(0) if machine.is_pretended else recipe
    train = (sys.executable, "PartOne/main.py", *flags, "--output-dir", FOLDER)
    longer = () if machine.is_pretended else LONG_RECIPE
    return [GpuCheck("recipe for 90 %", train, 60, lacking),
            GpuCheck("recipe for 92.8 %", (*train, *longer), 240, lacking)]
