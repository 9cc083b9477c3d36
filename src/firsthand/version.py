"""The version: what the package, the command line and a server say of themselves.

Owns: one string; a test holds it equal to `pyproject.toml`.
May not know: anything. Read next: `__init__.py`.
"""

VERSION = "0.1.0"
