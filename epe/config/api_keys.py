"""The file with the keys of clients (docs/security.md): a mapping of names to keys and their limits."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from epe.config.convert import to_struct
from epe.config.stage import Positive
from epe.config.yaml_file import read_yaml
from epe.errors import BadSetting

KEY_OF_FILE = "service.keys_file"


class ApiKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client: its `key`, or the SHA-256 of it in hexadecimal, and limits that go before the service's."""

    key: Annotated[str, Meta(min_length=16)] | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    megapixel_steps: Positive | None = None
    at_once: Positive | None = None

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the key."""
        if self.key is None:
            return bytes.fromhex(self.sha256 or "")
        return hashlib.sha256(self.key.encode()).digest()


def read_keys(path: str | None) -> dict[str, ApiKey]:
    """The keys by name; none without a file. Raises `BadSetting`, which never shows a key."""
    if path is None:
        return {}
    tree = read_yaml(Path(path))
    _check_private(Path(path))
    keys = {str(name): _read_key(str(name), value) for name, value in tree.items()}
    digests = [key.digest for key in keys.values()]
    if len(set(digests)) < len(digests):
        raise BadSetting(f"two names of {path} have the same key", path=KEY_OF_FILE)
    return keys


def _read_key(name: str, value: object) -> ApiKey:
    try:
        key = to_struct(value, ApiKey)
    except BadSetting as error:
        field = f"{name}.{error.path}" if error.path else name
        raise BadSetting(
            f"{field} is wrong; a client has key (16 characters at least) or sha256 (64 hexadecimal digits), "
            "and may have megapixel_steps and at_once",
            path=KEY_OF_FILE,
        ) from None
    if (key.key is None) == (key.sha256 is None):
        raise BadSetting(f"{name} must have key or sha256, and not both", path=KEY_OF_FILE)
    return key


def _check_private(path: Path) -> None:
    """Whoever may read the file may use the service in another one's name."""
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise BadSetting(f"everybody on this machine may read {path}; run chmod 600 {path}", path=KEY_OF_FILE)
