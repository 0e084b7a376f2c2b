"""The certificate of a server, and the context that connections are encrypted with."""

from __future__ import annotations

import ssl
from pathlib import Path

from tamis.base.errors import InputError


class Certificate:
    """A certificate chain and its private key, both PEM. A renewed pair is taken up by `reload`."""

    def __init__(self, cert: Path, key: Path) -> None:
        self.cert, self.key = cert, key
        self.context = _context(cert, key)

    def reload(self) -> None:
        """Reload the files; open connections keep the old pair. An error leaves the old pair in use: both
        files are first tried on a separate context."""
        _context(self.cert, self.key)
        self.context.load_cert_chain(self.cert, self.key, password=_no_password)


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    for path, what in ((cert, "certificate"), (key, "private key")):
        try:
            path.read_bytes()
        except OSError as error:
            raise InputError(
                f"the {what} cannot be read ({error.strerror})", path=path, remedy="check the path"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _EncryptedKeyError:
        raise InputError(
            "the private key is encrypted", path=key, remedy="decrypt it with openssl pkey -in KEY -out PLAIN"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem, remedy = f"the private key is not that of {cert}", "give the key of this certificate"
        elif error.reason and error.reason.endswith("KEY_TOO_SMALL"):
            problem, remedy = f"the key of {cert} is too short to be safe", "use 2,048 bits or more (RSA)"
        else:  # openssl does not say which of the files it is
            problem = f"{cert} and this file are not a PEM certificate and its PEM private key"
            remedy = "check both with openssl x509 -in CERT and openssl pkey -in KEY"
        raise InputError(problem, path=key, remedy=remedy) from error
    return context


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> str:
    """The passphrase callback of openssl, which would otherwise prompt at the terminal for an encrypted
    key."""
    raise _EncryptedKeyError
