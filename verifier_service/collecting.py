"""The folder of collected positions that a verifier's settings name."""

from __future__ import annotations

from slipstream.distilling.collector import Collector
from slipstream.distilling.records import TargetFacts
from slipstream.distilling.shard_writer import ClaimedFolder, ShardWriter
from slipstream.distilling.targets import sampled_digest
from slipstream.distilling.totals import CollectTotals
from slipstream.home import expanded
from slipstream.hosting.collecting import Collecting, NotCollecting
from slipstream.wire.v1 import model_pb2
from verifier_service.settings import VerifierSettings

_MIB = 2**20


class CollectingFolder:
    """`slipstream.hosting.collecting.Collecting` into the folder of --collect."""

    def __init__(self, settings: VerifierSettings) -> None:
        """RecordsError if the folder cannot be used."""
        self.totals = CollectTotals()
        self.share = settings.collect_share
        self._settings = settings
        self._folder = ClaimedFolder(expanded(settings.collect))
        self._collector: Collector | None = None

    def begin(self, info: model_pb2.ModelInfo) -> Collector:
        """Return the collector of the rows of a model that has been loaded."""
        settings = self._settings
        facts = TargetFacts(
            name=info.name,
            weights_fingerprint=info.weights_fingerprint,
            tokenizer_fingerprint=info.tokenizer_fingerprint,
            sampling_version=info.sampling_version,
            vocabulary_size=info.vocabulary_size,
            sampled_digest=sampled_digest(settings.model),
        )
        writer = ShardWriter(
            self._folder, facts, max_bytes=int(settings.collect_mib * _MIB), with_text=settings.collect_text
        )
        self._collector = Collector(writer, self.totals, share=settings.collect_share)
        return self._collector

    def close(self) -> None:
        """Write what is left."""
        if self._collector is not None:
            self._collector.close()


def collecting(settings: VerifierSettings) -> Collecting:
    """Return the place that the settings name. RecordsError if it cannot be used."""
    return CollectingFolder(settings) if settings.collect else NotCollecting()
