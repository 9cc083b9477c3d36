"""Where the engine's process begins.

Owns: the order: what is set before the modules are loaded.
May not know: anything else.
Read next: `child.py`.

    python -m firsthand.generation.child_start SOCKET_FD PARENT_PID
"""

from __future__ import annotations

import sys

from firsthand.processes import expect_little_garbage

if __name__ == "__main__":
    expect_little_garbage()
    from firsthand.generation.child import main

    raise SystemExit(main(sys.argv[1:]))
