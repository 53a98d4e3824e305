"""PURE: a site's name, and how a certificate writes it.

The name a site is known by is a URI, `federation://edge`; the DNS name beside it, `edge.fed.internal`, is there because
TLS wants one, and because a CA can be held to names under one domain. Neither is ever resolved.
"""

import re

from cryptography import x509

from federation.errors import ConfigError, Untrusted

SCHEME = "federation://"
DOMAIN = "fed.internal"  # .internal is nobody's on the Internet
_SITE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


def check_site(name: str) -> str:
    """Raises ConfigError."""
    if not _SITE.fullmatch(name):
        raise ConfigError(
            f"'{name[:64]}' is no site name", hint="lower-case letters, digits and - inside, at most 32: edge-1"
        )
    return name


def uri_of(site: str) -> str:
    return SCHEME + site


def dns_of(site: str) -> str:
    return f"{site}.{DOMAIN}"


def site_of(certificate: x509.Certificate) -> str:
    """The one site that a certificate names. Raises Untrusted."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    sites = [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]
    if len(sites) != 1 or not _SITE.fullmatch(sites[0]):
        raise Untrusted(
            f"the certificate names {len(sites)} sites", hint=f"it must have one name of the form {uri_of('SITE')}"
        )
    return sites[0]


def dns_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.DNSName)
