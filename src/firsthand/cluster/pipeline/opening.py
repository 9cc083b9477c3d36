"""A model over workers of Ray, from its name to its end.

Owns: the order in which Ray, stages and model are opened, and closed again.
May not know: what is asked of the model.
Read next: `loading.py`, `actors.py`; `cluster/session.py`, where Ray comes from.

    with open_pipeline("smollm2-135m", LoadOptions(), Wanted(num_stages=2)) as pipeline:
        with LLM(pipeline.loaded) as llm:
            print(llm.generate("The capital of France is").text)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from firsthand.cluster.pipeline.links import Links
from firsthand.cluster.pipeline.loading import Pipeline, Wanted, load_pipeline, stage_options
from firsthand.cluster.session import begin_own, join
from firsthand.compute.native.cores import available_threads
from firsthand.config import read_environment
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions


@contextmanager
def open_pipeline(
    model: str, options: LoadOptions, wanted: Wanted, address: str | None = None
) -> Iterator[Pipeline]:
    """`address`: a Ray that runs, whose workers find `model` by the same name; None: one of our
    own on this machine, begun when the model was found and can be split as it is wanted. Raises
    what `load_pipeline` does, and EngineUnavailable without a Ray."""
    home = read_environment().home
    with ExitStack() as held:

        def begin() -> None:
            try:
                begun = (
                    begin_own(home, wanted.num_stages) if address is None else join(address, home)
                )
            except ModuleNotFoundError as missing:
                if missing.name != "ray":
                    raise
                message = "workers need the extra: pip install 'firsthand[ray]'"
                raise InvalidRequest("stages", message) from None
            held.callback(begun.end)

        num_together = wanted.num_stages if address is None else 1
        loaded = load_on_ray(model, options, wanted, num_together, begin)
        yield held.enter_context(closing(loaded))


def load_on_ray(
    model: str,
    options: LoadOptions,
    wanted: Wanted,
    num_together: int,
    begin: Callable[[], None] = lambda: None,
) -> Pipeline:
    """In the Ray that this process has joined, or joins by `begin`; so many stages share the cores
    and the memory of a machine. Raises as `load_pipeline` does."""
    threads = max(1, available_threads() // num_together)

    def connect(model: str, options: LoadOptions) -> Links:
        begin()
        from firsthand.cluster.pipeline.actors import RayLinks

        own = stage_options(options, num_together, threads)
        return RayLinks(model, [own] * wanted.num_stages)

    return load_pipeline(model, options, wanted, connect)
