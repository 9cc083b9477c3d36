"""Who may come in: hosts, keys, and the few routes that need none.

Owns: the list of free routes, how a key is presented.
May not know: what a route does. A route that is not listed here needs a key, whatever it is called.
Read next: `middleware.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any

from firsthand.server.guard.call import Caller
from firsthand.server.guard.keys import KeyRing
from firsthand.server.guard.refusal import Refused
from firsthand.server.page_files import FREE_PATHS
from firsthand.values import dataclass

HEALTH = frozenset({"/health", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"})
FREE = HEALTH | FREE_PATHS  # the page's files too: it asks for a key itself
METRICS = "/metrics"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Access:
    """`hosts` None: any name will do in `Host`."""

    keys: KeyRing
    metrics_public: bool = False
    hosts: Collection[str] | None = None

    def caller(self, method: str, path: str, headers: Headers) -> Caller:
        """Who calls. Raises Refused, 401 or 403. `path` is the one that the router goes by."""
        if self._is_free(method, path):
            return Caller()
        if self.hosts is not None and host_of(headers) not in self.hosts:
            raise Refused(
                403, "this host name is not served here; see --allowed-hosts", "host_not_allowed"
            )
        if not self.keys:
            return Caller()
        presented = presented_key(headers)
        caller = None if presented is None else self.keys.find(presented)
        if caller is None:
            what = "is missing" if presented is None else "is wrong"
            message = f"the API key {what}; send it as 'Authorization: Bearer KEY'"
            raise Refused(401, message, "invalid_api_key")
        return caller

    def _is_free(self, method: str, path: str) -> bool:
        if method not in ("GET", "HEAD"):
            return False
        return path in FREE or (path == METRICS and self.metrics_public)


def route_path(scope: Mapping[str, Any]) -> str:
    """The path as the router sees it: decoded, without the prefix under which we are served."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


def take_prefix_once(scope: MutableMapping[str, Any]) -> None:
    """The server puts our prefix before every path, as if a proxy had taken it away. Where none
    has, it stands there twice; then one is taken away here, before anybody looks at the path."""
    root = str(scope.get("root_path", ""))
    if root and str(scope["path"]).startswith(f"{root}{root}/"):
        scope["path"] = scope["path"][len(root) :]
        scope["raw_path"] = scope["raw_path"][len(root) :]


def presented_key(headers: Headers) -> str | None:
    """The key of the request: a bearer token, or x-api-key. Two different ones are none."""
    found = set()
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            found.add(key.strip() if scheme.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            found.add(value.strip())
    found.discard(b"")
    return found.pop().decode("latin-1") if len(found) == 1 else None


def host_of(headers: Headers) -> str:
    """The name in `Host` without its port, in lower case; empty when there is not exactly one."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1:
        return ""
    text = hosts[0].decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") <= 1 else text
