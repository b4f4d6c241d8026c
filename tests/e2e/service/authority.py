"""Who signs the certificates of a service's tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["LOCAL", "Authority"]

LOCAL = "localhost"


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.path = self._write("ca.pem", self._certificate(self._name, self._key, 1, is_authority=True))

    def sign(self, name: str, hours: int = 1) -> tuple[str, str]:
        """Paths of a certificate for this machine, good for so long from now on, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._certificate(subject, key, hours, is_authority=False)
        return self._write(f"{name}.pem", certificate), self._write(f"{name}.key", secret)

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, hours: int, *, is_authority: bool
    ) -> bytes:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=2))
            .not_valid_after(now + timedelta(hours=hours))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(LOCAL)]), critical=False)
        )
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, text: bytes) -> str:
        path = self._folder / name
        path.write_bytes(text)
        return str(path)
