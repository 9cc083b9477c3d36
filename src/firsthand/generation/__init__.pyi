from firsthand.generation.completion import Chunk as Chunk
from firsthand.generation.completion import Completion as Completion
from firsthand.generation.completion import TokenLogprob as TokenLogprob
from firsthand.generation.llm import LLM as LLM
from firsthand.generation.report import Report as Report
