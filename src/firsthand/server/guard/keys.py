"""API keys: read once, kept as hashes, compared in constant time.

Owns: the forms of a key file, what a key may do, the comparison.
May not know: headers, routes, clocks.
Read next: `access.py`, which asks for a key.

A key file ending in `.toml` has one table per key:

    [[key]]
    name = "batch jobs"
    sha256 = "…"                 # or key = "…"; the hash of the key's bytes, in hex
    priority = "background"      # the highest class it may ask for; default: urgent
    requests_per_minute = 600    # 0 or none: no limit
    tokens_per_minute = 200000
    max_concurrent = 8

Any other file has one key per line; lines that are empty or begin with # are left out.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from firsthand.checks import check_integer, shown
from firsthand.errors import InvalidRequest
from firsthand.files import strict_toml
from firsthand.request import Priority
from firsthand.server.guard.call import Caller, Quota
from firsthand.values import dataclass

MIN_KEY_CHARS = 16  # what is shorter can be guessed
MAX_KEY_CHARS = 512
MAX_KEYS = 10_000
MAX_FILE_BYTES = 4 << 20
KEY_ID_CHARS = 12
_KEY = re.compile(r"[!-~]+")  # what a header can carry
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"name", "key", "sha256", "priority"} | set(Quota.__slots__)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys that are known, by the hash of each. Empty: nobody needs one."""

    callers: Mapping[bytes, Caller]

    def __bool__(self) -> bool:
        return bool(self.callers)

    def find(self, presented: str) -> Caller | None:
        """Whose key it is. Every known hash is compared, whatever the first ones said, and only
        hashes are: the time tells neither how much of a key is right nor which one it is."""
        digest = _digest(presented)
        found: Caller | None = None
        for known, caller in self.callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def key_ring(keys: Iterable[str], file: Path | None, quota: Quota) -> KeyRing:
    """The keys of both sources; `quota` is for those that name none of their own.

    Raises InvalidRequest: a key that is too short or given twice, a file that cannot be used.
    """
    callers: dict[bytes, Caller] = {}
    for key in keys:
        _add(callers, "api_key", _digest(_checked("api_key", key)), Caller(quota=quota))
    if file is not None:
        text = _read(file)
        if file.suffix == ".toml":
            for place, table in enumerate(_tables(text), 1):
                _add(callers, f"api_key_file: key {place}", *_entry(table, place, quota))
        else:
            for number, line in enumerate(text.splitlines(), 1):
                where = f"api_key_file: line {number}"
                key = line.strip()
                if key and not key.startswith("#"):
                    _add(callers, where, _digest(_checked(where, key)), Caller(quota=quota))
        if not callers:
            raise InvalidRequest("api_key_file", "holds no key")
    return KeyRing(callers)


def _add(callers: dict[bytes, Caller], where: str, digest: bytes, caller: Caller) -> None:
    if digest in callers:
        raise InvalidRequest(where, "this key is there already")
    if len(callers) >= MAX_KEYS:
        raise InvalidRequest(where, f"there are more than {MAX_KEYS} keys")
    key_id = digest.hex()[:KEY_ID_CHARS]
    salt = hashlib.sha256(b"cache salt of " + digest).hexdigest()
    callers[digest] = replace(caller, key_id=key_id, cache_salt=salt)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _checked(where: str, key: str) -> str:
    """The message never shows the key."""
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS:
        limits = f"{MIN_KEY_CHARS} to {MAX_KEY_CHARS}"
        raise InvalidRequest(where, f"a key has {limits} characters, this one {len(key)}")
    if not _KEY.fullmatch(key):
        raise InvalidRequest(where, "a key has printable ASCII characters only, and no space")
    return key


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest("api_key_file", f"{file}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest("api_key_file", f"{file} is longer than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("api_key_file", f"{file} is not UTF-8") from None


def _tables(text: str) -> list[dict[str, Any]]:
    try:
        content = strict_toml(text)
    except ValueError as error:
        raise InvalidRequest("api_key_file", f"is no TOML: {error}") from None
    tables = content.pop("key", [])
    if content:
        raise InvalidRequest("api_key_file", f"has [[key]] tables only, not {shown(min(content))}")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidRequest("api_key_file", "each key is a table: [[key]]")
    return tables


def _entry(table: Mapping[str, Any], place: int, quota: Quota) -> tuple[bytes, Caller]:
    where = f"api_key_file: key {place}"
    for field in table:
        if field not in _FIELDS:
            raise InvalidRequest(where, f"has no field {shown(field)}")
    if ("key" in table) == ("sha256" in table):
        raise InvalidRequest(where, "give either key or sha256")
    secret = table.get("key", table.get("sha256"))
    name, priority = table.get("name", ""), table.get("priority", "urgent")
    if not isinstance(secret, str) or not isinstance(name, str) or len(name) > 100:
        raise InvalidRequest(where, "key, sha256 and name are texts, a name of 100 at most")
    if "sha256" in table and not _SHA256.fullmatch(secret):
        raise InvalidRequest(where, "sha256 is 64 digits of lower-case hex")
    if priority not in tuple(Priority):
        raise InvalidRequest(where, f"priority is one of {', '.join(Priority)}")
    limits = {}
    for field in Quota.__slots__:
        limits[field] = table.get(field, getattr(quota, field))
        check_integer(f"{where}: {field}", limits[field], 0, 10**12)
    digest = bytes.fromhex(secret) if "sha256" in table else _digest(_checked(where, secret))
    caller = Caller(name=name, highest_priority=Priority(priority), quota=Quota(**limits))
    return digest, caller
