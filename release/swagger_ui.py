"""
Renew Swagger UI's files, which the package has for its page ``/docs``: ``python release/swagger_ui.py``.

Needs npm. For another version, set `VERSION`, run this, and copy the digests that it prints to `FILES`. Then
look at the page in a browser: ``page/docs.css`` names Swagger UI's classes.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "5.33.1"
# Each file with its SHA-256. The Apache License 2.0 requires copies of LICENSE and NOTICE (section 4); the
# licences of the parts that are bundled are in a file of their own.
FILES = {
    "LICENSE": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
    "NOTICE": "0d20d1adef18aee3f40dd258172155521ce702ac445cb5f7b7d60ed32dad2fb2",
    "swagger-ui-bundle.js": "050bc415ee7048dcd881682678f720264e7da5e373f7461d7c58c755305255f7",
    "swagger-ui-bundle.js.LICENSE.txt": "63818894e4b04cd0e3180d9cb20761e227a939121e7484f8e1d528227c756f89",
    "swagger-ui.css": "1ac324f7dcd27e4b9386b4bd6421271ec147e922a22c05ba24b11515e9aa6321",
}
TARGET = Path(__file__).resolve().parent.parent / "src/sampleapp/web/openapi/swagger_ui"


def main() -> None:
    """Fetch the files, compare them with their digests, and write them."""
    contents = fetch()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if digests != FILES:
        lines = "".join(f'    "{name}": "{digest}",\n' for name, digest in digests.items())
        sys.exit(f"Nothing was changed: FILES has other digests than swagger-ui-dist {VERSION}:\n{lines}")
    for name, content in contents.items():
        (TARGET / name).write_bytes(content)


def fetch() -> dict[str, bytes]:
    """Return the contents of the files. npm compares their archive with its digest in the registry."""
    with tempfile.TemporaryDirectory(prefix="swagger-ui-") as directory:
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"swagger-ui-dist@{VERSION}"]
        subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL)
        (path,) = Path(directory).iterdir()
        with tarfile.open(path) as archive:
            files = {name: archive.extractfile(f"package/{name}") for name in FILES}
            return {name: file.read() for name, file in files.items() if file is not None}


if __name__ == "__main__":
    main()
