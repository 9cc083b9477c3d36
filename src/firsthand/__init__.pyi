# What `__init__.py` gives lazily, for type checkers.
from firsthand.generation import LLM as LLM
from firsthand.generation import Chunk as Chunk
from firsthand.generation import Completion as Completion

__all__ = ["LLM", "Chunk", "Completion", "__version__"]
__version__: str
