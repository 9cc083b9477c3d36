"""An authority made on the spot, and certificates of it, by the openssl command.

Owns: `Authority`. May not know: who listens with one. Read next: `test_tls.py`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Signs certificates; its own is `file`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.file = self._make("authority", "/CN=authority")[0]

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for this machine's own names, and its key."""
        return self._make(
            name, f"/CN={name}",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-CA", str(self.file), "-CAkey", str(self.file.with_suffix(".key")),
        )  # fmt: skip

    def of(self, name: str) -> str:
        """The certificate that was issued last."""
        return (self._folder / f"{name}.pem").read_text()

    def _make(self, name: str, subject: str, *more: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        command = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2", "-subj", subject, "-keyout", str(key), "-out", str(certificate),
            *more,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        return certificate, key
