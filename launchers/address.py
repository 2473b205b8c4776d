"""Which Ray Jobs addresses may be used, and how safely.

A Ray cluster runs whatever it is sent, so a plain connection without a token to a host elsewhere is an open door for
everyone on the way.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

SCHEMES = ("http", "https", "sagemaker_ray")
CLUSTER_DNS = re.compile(r"(^|\.)svc(\.cluster\.local)?$|^[\w-]+-svc$")


def problem(address: str, *, has_token: bool, allow_insecure: bool) -> str | None:
    """What is wrong with an address, as a sentence that ends with the way out; None if it may be used."""
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES or not rest.strip("/"):
        return f"wants http://HOST:PORT, https://HOST or sagemaker_ray://CLUSTER/NAMESPACE, got {address!r}"
    parts = urlsplit(address)
    if parts.username or parts.password or parts.query:
        return "holds a user, password or query, and a config is saved; put the token into the variable of token_env"
    if scheme != "http" or has_token or allow_insecure or _inside(parts.hostname or ""):
        return None
    told = f"{address} is plain http to another host, without a token: anyone on the way could run code there"
    return f"{told}; set the token's variable, use https or a port-forward to 127.0.0.1, or allow_insecure=true"


def _inside(host: str) -> bool:
    """This machine, or a name that only resolves inside the cluster."""
    if host == "localhost" or CLUSTER_DNS.search(host):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
