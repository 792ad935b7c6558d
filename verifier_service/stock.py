"""The host of a verifier over a stock engine, from the service's settings."""

from __future__ import annotations

from slipstream.engine.host import JobHost
from slipstream.engine.job import Job
from slipstream.errors import FieldViolation, InvalidFieldsError
from slipstream.hosting.service_telemetry import ServiceTelemetry
from slipstream.hosting.tokenizer_files import TokenizerFiles
from slipstream.hosting.tokenizer_json import TOKENIZER_FILE
from slipstream.stock.start import StockSettings, stock_worker
from slipstream.transport.tokens import reloaded_bearer
from verifier_service.settings import VerifierSettings


def stock_host(
    settings: VerifierSettings, name: str, tokenizer: TokenizerFiles, telemetry: ServiceTelemetry
) -> JobHost[Job]:
    """Return a host whose jobs a stock engine computes. InvalidFieldsError, UnsupportedModelError,
    FileError."""
    if not settings.engine_address:
        raise InvalidFieldsError(
            [
                FieldViolation(
                    "--engine-address", f"must be set with --engine {settings.engine}, such as http://127.0.0.1:8000"
                )
            ]
        )
    if settings.heads:
        raise InvalidFieldsError(
            [FieldViolation("--heads", f"must be left out with --engine {settings.engine}: give them to that server")]
        )
    if settings.engine_model and settings.engine != "vllm":
        raise InvalidFieldsError(
            [FieldViolation("--engine-model", f"must be left out with --engine {settings.engine}: it serves one model")]
        )
    token_file = settings.engine_token_file
    stock = StockSettings(
        engine=settings.engine,
        address=settings.engine_address,
        model=name,
        bearer=reloaded_bearer("--engine-token-file", token_file, least_length=1) if token_file else None,
        start_seconds=settings.engine_start_seconds,
        timeout_seconds=settings.engine_timeout_seconds,
        patience_seconds=settings.engine_patience_seconds,
        limits=settings.batch_limits(),
        most_sequences=settings.max_sequence_count,
        served_as=settings.engine_model,
    )
    worker = stock_worker(stock, tokenizer.files[TOKENIZER_FILE], telemetry.record_step)
    return JobHost(worker, settings.host_limits())
