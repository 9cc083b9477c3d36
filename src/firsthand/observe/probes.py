"""Which requests are no traffic: probes, scrapes, the page, whoever looks at the server.

Owns: the list, of routes as metrics and log call them. May not know: who leaves them out.
Read next: `alerts.py`, `causes.py`, `../server/logs.py`, which do.
"""

from __future__ import annotations

import re
from typing import Final

# As Prometheus takes it, which matches whole names. `other`: paths that no route has.
PROBES: Final = "/|/page/.*|/firsthand/.*|/health|/livez|/readyz|/metrics|/v2/.*|/version|other"
_PROBES: Final = re.compile(PROBES)


def is_probe(endpoint: str) -> bool:
    return _PROBES.fullmatch(endpoint) is not None
