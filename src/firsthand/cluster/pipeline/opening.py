"""A model over workers of Ray, from its name to its end.

Owns: the order in which Ray, stages and model are opened, and closed again.
May not know: what is asked of the model.
Read next: `loading.py`, `session.py`, `actors.py`.

    with open_pipeline("smollm2-135m", LoadOptions(), Wanted(num_stages=2)) as pipeline:
        with LLM(pipeline.loaded) as llm:
            print(llm.generate("The capital of France is").text)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from firsthand.cluster.pipeline.loading import Pipeline, Wanted, load_pipeline, stage_options
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions


@contextmanager
def open_pipeline(
    model: str, options: LoadOptions, wanted: Wanted, address: str | None = None
) -> Iterator[Pipeline]:
    """`address`: a Ray that runs, whose workers find `model` by the same name; None: one of our
    own on this machine. Raises what `load_pipeline` does."""
    try:
        from firsthand.cluster.pipeline.actors import RayLinks
        from firsthand.cluster.pipeline.session import ray_session, threads_each
    except ModuleNotFoundError as missing:
        if missing.name != "ray":
            raise
        message = "workers need the extra: pip install 'firsthand[ray]'"
        raise InvalidRequest("stages", message) from None

    def connect(model: str, options: LoadOptions) -> RayLinks:
        on_machine = wanted.num_stages if address is None else 1
        own = stage_options(options, on_machine, threads_each(on_machine))
        return RayLinks(model, [own] * wanted.num_stages)

    with (
        ray_session(address, wanted.num_stages),
        closing(load_pipeline(model, options, wanted, connect)) as pipeline,
    ):
        yield pipeline
