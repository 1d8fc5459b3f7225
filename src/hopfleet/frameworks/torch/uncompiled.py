"""Keeps PyTorch's compiler out of this process until code asks for it. Workers import this module before they fork."""

from __future__ import annotations

from hopfleet.frameworks.torch._compat import keep_compiler_out

keep_compiler_out()
