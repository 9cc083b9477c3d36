"""Data in: files, tables and queues become checked records, and nothing is lost on the way.

Owns: what a record is, how its bytes are read and decoded, what a contract asks of it, and where
what breaks the contract goes.
May not know: how a model computes; HTTP.
Read next: `record.py` (the nouns), `encoding.py` and `lines.py` (bytes to text), `source.py` and
`sources/` (text to fields), `contract.py` (fields to values), `pipeline.py` (the whole way, to
answers on disk), `ledger.py` (what survives a crash).
"""

from firsthand.data.contract import Contract, NotBlank

__all__ = ["Contract", "NotBlank"]
