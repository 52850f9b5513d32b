"""What all requests to servers with OpenAI's protocol have in common: the address, the key, and which faults pass."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from guardwrap.errors import UsageError


def plain_address(url: str, whose: str) -> str:
    """Return a URL without a trailing slash."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"{whose}: base_url is not a valid URL; give one like 'http://localhost:8000/v1'") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(f"{whose}: base_url has more than a host and a path; pass a key as api_key=")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{whose}: base_url={url!r} is not a valid URL; give one like 'http://localhost:8000/v1'")
    return url.rstrip("/")


def environment_key() -> str | None:
    """Return the key in ``OPENAI_API_KEY``; None if it is empty or not set."""
    return os.environ.get("OPENAI_API_KEY") or None


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later, after an HTTP status of at least 400."""
    return status in (408, 409, 425, 429) or (status >= 500 and status != 501)
