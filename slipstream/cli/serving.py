"""The services, started by a command that shows how far they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from slipstream.cli.ending import fail, progress, refusals
from slipstream.cli.flags import in_flags_words
from slipstream.cli.listen_addresses import refuse_busy
from slipstream.cli.local import LocalServices, PairSettings
from slipstream.cli.model_arguments import refuse_wrong_model
from slipstream.cli.serve_flags import FLAGS
from slipstream.cli.service_process import START_SECONDS
from slipstream.errors import SlipstreamError
from slipstream.extras import require


@contextmanager
def serving(
    settings: PairSettings,
    listening: Mapping[str, str] = MappingProxyType({}),
    *,
    orchestrator: str | None = None,
    verifier: str | None = None,
    draft: str | None = None,
    gateway: str = "",
    model_flags: tuple[str, str] = ("--target", "--draft"),
    timeout: float = START_SECONDS,
) -> Iterator[LocalServices]:
    """LocalServices with progress on standard error, and a readable end if they cannot start. What
    can be seen to be wrong without a service is refused before one starts.

    ``listening`` has the addresses that the caller was given, by their options; ``model_flags`` are
    those of target and draft. ``timeout`` is the longest start in seconds.
    """
    require("slipstream", "compiled", "orchestrator", *(["gateway"] if gateway else []))
    with refusals(""):
        refuse_wrong_model(model_flags[0], settings.target)
        if settings.draft:
            refuse_wrong_model(model_flags[1], settings.draft)
        refuse_busy(listening)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal) as waiting:
        task = waiting.add_task("starting the services")

        def say(text: str) -> None:
            waiting.update(task, description=text)
            if not progress.is_terminal:
                progress.print(text, soft_wrap=True, highlight=False)

        services = LocalServices(
            settings,
            orchestrator=orchestrator,
            verifier=verifier,
            draft=draft,
            gateway=gateway,
            timeout=timeout,
            report=say,
        )
        try:
            services.__enter__()
        except SlipstreamError as error:
            refusal = in_flags_words(str(error), FLAGS)
        else:
            refusal = ""
    if refusal:
        fail(refusal)
    for remark in services.remarks:
        progress.print(remark, soft_wrap=True, highlight=False)
    try:
        yield services
    finally:
        if progress.is_terminal:
            progress.print("stopping the services; running turns may end first")
        services.stop()
