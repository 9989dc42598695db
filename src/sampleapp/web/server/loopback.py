"""Addresses that only this machine can use."""

from __future__ import annotations

from ipaddress import IPv6Address as IPv6AddressValue
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

__all__ = ["is_on_loopback"]


def is_on_loopback(address: Any) -> bool:
    """
    Return whether only this machine can use an address: loopback, or a Unix socket.

    :param address: of an endpoint or of a client: an `IAddress` of Twisted, or ``None``.
    """
    if not isinstance(address, IPv4Address | IPv6Address):
        return isinstance(address, UNIXAddress)
    ip = ip_address(address.host.partition("%")[0])
    # An endpoint for IPv6 may take IPv4 as well (RFC 4291, section 2.5.5.2).
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6AddressValue) else None
    return (mapped or ip).is_loopback
