"""Cosines that are the same from a process's first on."""

from __future__ import annotations

import torch


def settle_vector_math() -> None:
    """Have torch's vector functions choose their code before several threads ask for it at once.

    Where they are MKL's, a process's first cosines of some thousand numbers, computed by two
    threads, were off by 1.5e-4 in one thread's half in one process of ten, and right ever after
    (torch 2.13, a processor with AMX). A few numbers are one thread's work.
    """
    for function in (torch.cos, torch.sin, torch.exp):
        function(torch.ones(1))
