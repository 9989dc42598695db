"""Authorities, certificates, and a server at an ``https:`` endpoint."""

from __future__ import annotations

import pytest

from tests.support.certificates import Authority
from tests.support.tls_in_memory import Server


@pytest.fixture
def authority(tmp_path):
    """Signs the certificate of the server, and those of clients."""
    return Authority(tmp_path)


@pytest.fixture
def foreign(tmp_path):
    """An authority that the server does not know."""
    (tmp_path / "foreign").mkdir()
    return Authority(tmp_path / "foreign", "foreign-ca")


@pytest.fixture
def files(authority):
    return authority.server()


@pytest.fixture
def serve(authority, files):
    """Starts a server that asks clients for certificates."""

    def serve(*arguments, **options):
        given = (
            f"privateKey={files.key}",
            f"certKey={files.certificate}",
            f"clientCA={authority.certificate}",
            *arguments,
        )
        return Server(":".join(["https", "8443", *given]), **options)

    return serve
