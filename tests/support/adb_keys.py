"""Whether an adb server holds the private key of a public one that a device knows."""

from __future__ import annotations

import base64
import struct

#: Words of the modulus, a helper for Montgomery's multiplication, the modulus and another helper
#: (little-endian, 2048 bits each), and the exponent.
KEY = struct.Struct("<II256s256sI")
#: What PKCS #1 (version 1.5) puts before a digest by SHA-1, which the token stands for.
SHA1_PREFIX = bytes.fromhex("3021300906052b0e03021a05000414")


def is_signed(token: bytes, signature: bytes, public_key: bytes) -> bool:
    """Whether the owner of a public key, as `adbkey.pub` holds it, has signed a token."""
    _, _, modulus, _, exponent = KEY.unpack(base64.b64decode(public_key.split()[0]))
    digest = SHA1_PREFIX + token
    padding = b"\xff" * (len(modulus) - 3 - len(digest))
    expected = b"\x00\x01" + padding + b"\x00" + digest
    opened = pow(int.from_bytes(signature, "big"), exponent, int.from_bytes(modulus, "little"))
    return opened == int.from_bytes(expected, "big")
