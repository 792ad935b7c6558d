"""A target that ranks share, in a process of the proof, which starts the other rank."""

from __future__ import annotations

import torch.distributed

from proving.pairs import RANK_COUNT
from slipstream.engine.model import Backend
from slipstream.hosting.ranks.local_ranks import LocalRanks
from slipstream.hosting.ranks.place import Place
from slipstream.hosting.ranks.sharding import leading_backend
from slipstream.interpreter import module_command
from verifier_service.settings import VerifierSettings


class RankedTarget:
    """Rank 0's backend. A process may have one after another."""

    def __init__(self, name: str, dtype: str) -> None:
        flags = ["--model", name, "--dtype", dtype, "--threads", "1", "--tensor-parallel-size", str(RANK_COUNT)]
        settings = VerifierSettings(_cli_parse_args=flags)
        place = Place(0, RANK_COUNT, 0, RANK_COUNT, starts_others=True)
        # The other rank is a verifier's: it listens nowhere.
        command = module_command("verifier_service", *flags)
        self._ranks = LocalRanks("reference", place, command, settings.rank_patience_seconds)
        self._ranks.__enter__()
        self.backend: Backend = leading_backend(settings, name, exact=True, ranks=self._ranks)

    def close(self) -> None:
        """End the other rank, and forget the group."""
        self._ranks.__exit__(None, None, None)
        torch.distributed.destroy_process_group()
