"""Optimizers work without the compiler, and code that asks for the compiler gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hopfleet as hop
from hopfleet.frameworks.torch._compat import COMPILER_MODULE

SCRIPT = """
import sys

import pytest
import torch
from hopfleet.frameworks.torch import _compat, uncompiled

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
assert torch.func.grad(lambda x: x * x)(torch.tensor(3.0)) == 6
compiler = sys.modules["torch._dynamo"]
assert isinstance(compiler, _compat.CompilerStandIn) and "sympy" not in sys.modules
gradients = compiler.compiled_autograd
told = torch.optim.Optimizer.add_param_group.__wrapped__.__dict__
assert "__dynamo_disable" in told

import torch._dynamo.config

assert type(torch._dynamo) is type(sys), "the real one"
assert sys.modules["torch._dynamo"] is torch._dynamo
assert sys.modules["torch._dynamo.config"] is torch._dynamo.config, "and each of its modules once"
assert compiler.disable is torch._dynamo.disable
assert gradients._enable is torch._dynamo.compiled_autograd._enable and not hasattr(gradients, "nothing")
assert "__dynamo_disable" not in told, "it is told again"
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
assert told["__dynamo_disable"] is not torch.optim.Optimizer.add_param_group.__wrapped__
assert torch.compile(model, backend="eager")(torch.ones(1, 2)).shape == (1, 1)
assert _compat.real_compiler() is torch._dynamo
"""


@pytest.mark.slow
def test_the_compiler_is_imported_when_it_is_wanted() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)


def test_a_task_that_compiles_loads_the_compiler_before_workers_fork() -> None:
    class Plain(hop.TorchTask):
        pass

    class Compiled(hop.TorchTask):
        compile = True

    class Choosy(hop.TorchTask):
        @property
        def compile(self) -> bool:  # type: ignore[override]
            return bool(self.config["compile"])

    assert "hopfleet.frameworks.torch.uncompiled" in Plain().preload
    assert COMPILER_MODULE not in Plain().preload
    assert COMPILER_MODULE in Compiled().preload and COMPILER_MODULE in Choosy().preload
