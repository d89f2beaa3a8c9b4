"""Addresses without their secrets, and loopback kept off proxies."""

import os
import re


def without_secrets(address: str) -> str:
    """Return `address` without user, password, query and fragment, fit for a log or a manifest.

    A password may hold any character, so everything before the last `@` goes.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "", address
    return scheme + separator + re.split(r"[?#]", rest.rpartition("@")[2], maxsplit=1)[0]


def bypass_proxies(host: str) -> None:
    """Keep calls to `host` off a proxy that the environment names for everything else."""
    for name in {"no_proxy", "NO_PROXY"} & set(os.environ) or {"no_proxy"}:
        hosts = [one for one in os.environ.get(name, "").split(",") if one.strip()]
        if host not in hosts:
            os.environ[name] = ",".join([*hosts, host])
