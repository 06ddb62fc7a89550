"""torch's private functions give what the public ones give, and stand in one file.

Mutations that turn this red: swap the two sums of batch_norm_sums; use
torch._foreach_norm, torch.ops or an assignment to __class__ in another file; a plain SGD in
create_optimizer; _should_skip_dynamo that returns True.
"""

import ast
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.optim import SGD, Adadelta, Adagrad, Adam

from common.arithmetic import torch_private
from tests.ranks import ROOT
from tests.unit.test_structure import PARTS, SOURCES, name_of

EPS = 1e-5
HOME = "common/arithmetic/torch_private.py"
USERS = ("common", *PARTS, "studies")
UNPROMISED = {"ops", "_C", "batch_norm_update_stats", "native_batch_norm_backward"}
# Python's own: of named tuples, os and sys (the caller, in its own thread), and argparse's, which
# has no public way to list its flags.
PYTHON = {"_replace", "_asdict", "_exit", "_getframe", "_actions", "_ArgumentGroup"}


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_batch_statistics():
    (maps,) = tensors((6, 3, 4, 4))
    running = torch.zeros(3), torch.ones(3)
    mean, variance = torch_private.batch_statistics(maps, *running, 0.1)
    public_variance, public_mean = torch.var_mean(maps, (0, 2, 3), correction=0)
    torch.testing.assert_close((mean, variance), (public_mean, public_variance))
    layer = nn.BatchNorm2d(3)
    layer(maps)
    torch.testing.assert_close(running, (layer.running_mean, layer.running_var))


def test_the_sums_of_batch_norm():
    maps, gradient, mean = tensors((6, 3, 4), (6, 3, 4), (3,))
    variance = torch.tensor([1.0, 2.0, 3.0])
    found = torch_private.batch_norm_sums(gradient, maps, mean, variance, EPS)
    weight, bias = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    normalised = batch_norm(maps, mean, variance, weight, bias, eps=EPS)
    expected = torch.autograd.grad(normalised, (weight, bias), gradient)
    torch.testing.assert_close(found, expected)


def test_a_layer_of_another_class_is_the_same_layer():
    class Louder(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    layer, (rows,) = nn.Linear(4, 2), tensors((3, 4))
    weight, before = layer.weight, layer(rows)
    torch_private.change_class(layer, Louder)
    assert layer.weight is weight and torch.equal(layer(rows), 2 * before)


def test_batch_norms_have_one_base_and_refuse_inputs_of_other_dimensions():
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    assert all(issubclass(kind, torch_private.AnyBatchNorm) for kind in kinds)
    torch_private.require_dimensions(nn.BatchNorm2d(3), torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="4D"):
        torch_private.require_dimensions(nn.BatchNorm2d(3), torch.zeros(2, 3))


@pytest.mark.parametrize("kind", [SGD, Adam, Adadelta, Adagrad])
def test_an_optimizer_without_the_compiler_makes_the_same_steps(kind):
    (start, *gradients) = tensors((5, 3), (5, 3), (5, 3))
    ways = kind, torch_private.without_compiler(kind)
    results = []
    for way in ways:
        weight = nn.Parameter(start.clone())
        optimizer = way([weight], lr=0.1, weight_decay=0.01)
        for gradient in gradients:
            optimizer.zero_grad()
            weight.grad = gradient.clone()
            optimizer.step()
        results.append((weight.detach(), optimizer.state_dict()["state"]))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert type(optimizer).__name__ == kind.__name__ and isinstance(optimizer, kind)


def test_a_run_does_not_import_torchs_compiler(tmp_path):
    program = f"""
import atexit, runpy, sys
atexit.register(lambda: print("compiler:", "torch._dynamo" in sys.modules))
sys.argv = ["PartOne/main.py", "--workload", "spiral-mlp", "--max-iterations", "2",
            "--output-dir", {str(tmp_path)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True,
                           text=True, check=False)
    assert "compiler: False" in ended.stdout, ended.stdout + ended.stderr


def test_no_other_file_uses_what_torch_does_not_promise():
    trees = {name_of(path): ast.parse(path.read_text()) for path in SOURCES
             if name_of(path).split("/")[0] in USERS}
    own = {name for tree in trees.values() for node in ast.walk(tree) for name in defined(node)}
    used = {f"{path}: {name}" for path, tree in trees.items() if path != HOME
            for node in ast.walk(tree) for name in unpromised(node, own)}
    assert not used


def defined(node: ast.AST) -> set[str]:
    """The names that a node gives to something of this project's."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return {node.id if isinstance(node, ast.Name) else node.attr}
    return set()


def unpromised(node: ast.AST, own: set[str]) -> set[str]:
    """The private names of torch that a node uses: with an underscore, or under torch.ops."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
        return {alias.name for alias in node.names if alias.name.startswith("_")}
    if not isinstance(node, ast.Attribute):
        return set()
    if node.attr == "__class__" and isinstance(node.ctx, ast.Store):
        return {node.attr}
    if ast.unparse(node.value).split(".")[0] == "torch" and node.attr in UNPROMISED:
        return {node.attr}
    private = node.attr.startswith("_") and not node.attr.startswith("__")
    return {node.attr} if private and node.attr not in own | PYTHON else set()
