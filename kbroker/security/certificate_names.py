"""Principal names of clients that authenticate with a TLS certificate.

The name is the subject of the certificate as Java prints it, so that Kafka's ACLs and super users
match: RFC 2253 with Java's short attribute names and every special character escaped.
``ssl.principal.mapping.rules`` can shorten it (KIP-371).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .errors import AuthenticationError, BadSettings

RULES = "ssl.principal.mapping.rules"
DEFAULT = "DEFAULT"
# Maximum size of a subject in bytes. The rules scan a subject several times, and errors quote it.
SUBJECT_BYTES_MAX = 8 * 1024

# Tag and content of an ASN.1 element.
Element: TypeAlias = tuple[int, bytes]

_VERSION = 0xA0
# Fields of a certificate before the subject (RFC 5280, 4.1): serial number, algorithm, issuer,
# validity.
_FIELDS_BEFORE_SUBJECT = 4
# String types that Java decodes as UTF-8; it prints other values in hexadecimal.
_TEXT_TAGS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
_KEYWORDS = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("0992268993f22c640101"): "UID",
    bytes.fromhex("0992268993f22c640119"): "DC",
}
_SPECIAL = re.compile(r'[,=+<>#;"\\]')
_EDGES = re.compile(r"^[ \r]+|[ \r]+$")


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate, formatted like Java's ``X500Principal.getName``.

    OpenSSL must have verified the certificate.

    Raises:
        AuthenticationError: The subject is too long or cannot be parsed.
    """
    try:
        ((_, whole),) = _der_elements(certificate)
        fields = [*_der_elements(next(_der_elements(whole))[1])]
        if fields[0][0] == _VERSION:
            del fields[0]
        _, subject = fields[_FIELDS_BEFORE_SUBJECT]
        if len(subject) > SUBJECT_BYTES_MAX:
            raise AuthenticationError(
                f"certificate: the subject is longer than {SUBJECT_BYTES_MAX} bytes"
            )
        sets = [content for _, content in _der_elements(subject)]
        return ",".join("+".join(map(_attribute, _der_elements(each))) for each in reversed(sets))
    except (IndexError, ValueError, StopIteration):
        raise AuthenticationError("certificate: the subject is malformed") from None


def _der_elements(data: bytes) -> Iterator[Element]:
    """Return the consecutive DER elements of `data` (X.690, 8.1). Raises IndexError."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length > 0x7F:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise IndexError
        yield tag, data[at : at + length]
        at += length


def _attribute(element: Element) -> str:
    (_, oid), (tag, value) = _der_elements(element[1])
    keyword = _KEYWORDS.get(oid)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or _dotted_decimal(oid)}=#{_encode(tag, value).hex()}"
    text = _SPECIAL.sub(r"\\\g<0>", value.decode("utf-8", "replace")).replace("\0", "\\00")
    return f"{keyword}={_EDGES.sub(_escape_edges, text)}"


def _escape_edges(found: re.Match[str]) -> str:
    return "".join("\\" + each for each in found[0])


def _dotted_decimal(oid: bytes) -> str:
    """Return an object identifier in dotted decimal form (X.690, 8.19)."""
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _encode(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


class _Rule(NamedTuple):
    """A mapping rule. The pattern None keeps every name unchanged."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """Return the mapped name, or None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._expand, name)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)

    def _expand(self, match: re.Match[str]) -> str:
        """Expand ``$1`` and ``${name}`` in the replacement; a backslash quotes a character."""
        return _REFERENCE.sub(lambda one: _resolve_reference(match, one), self.replacement)


_PART = r"(?:\\.|[^\\/])*"
_RULE = re.compile(
    rf"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>{_PART})/(?P<to>{_PART})/(?P<case>[LU]?))?\s*"
)
_REFERENCE = re.compile(r"\\(?P<plain>.)|\$(?P<number>\d+)|\$\{(?P<name>\w+)\}", re.DOTALL)


def _resolve_reference(match: re.Match[str], reference: re.Match[str]) -> str:
    if reference["plain"] is not None:
        return reference["plain"]
    if reference["name"] is not None:
        return match.group(reference["name"]) or ""
    digits = reference["number"]
    # As in Java: use as many digits as name an existing group; the rest is literal text.
    for size in range(len(digits), 0, -1):
        if int(digits[:size]) <= match.re.groups:
            return (match.group(int(digits[:size])) or "") + digits[size:]
    return reference[0]


class MappingRules:
    """The parsed ``ssl.principal.mapping.rules``.

    The setting lists ``RULE:pattern/replacement/[LU]`` and DEFAULT, separated by commas. The first
    rule whose pattern matches the whole subject gives the name (KIP-371). Patterns use RE2, which
    matches in linear time, because the owner of a certificate chooses the matched text. RE2 has no
    look-around and no back-references.

    Raises:
        BadSettings: A rule or a pattern is invalid.
    """

    def __init__(self, text: str) -> None:
        self._rules = [*_parse_rules(text.strip() or DEFAULT)]

    def name_of(self, subject: str) -> str:
        """Return the principal name for a certificate subject.

        Raises:
            AuthenticationError: No rule matches.
        """
        for rule in self._rules:
            name = rule.apply(subject)
            if name:
                return name
        raise AuthenticationError(f"no rule of {RULES} matches the subject {subject}")


def _parse_rules(text: str) -> Iterator[_Rule]:
    at = 0
    while True:
        found = _RULE.match(text, at)
        if found is None or text[found.end() :][:1] not in ("", ","):
            raise BadSettings(
                f"{RULES}: {text[at:].strip()!r} does not begin with a rule; use "
                "RULE:pattern/replacement/ (append L or U for lower or upper case) or DEFAULT"
            )
        if found["default"]:
            yield _Rule(None, "", "")
        elif found["pattern"] is not None:
            yield _Rule(_compile(found["pattern"]), found["to"], found["case"])
        at = found.end() + 1
        if at > len(text):
            return


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with RE2; the result has the methods of an `re` pattern."""
    try:
        import re2
    except ImportError:
        raise BadSettings(
            f"{RULES}: the package 'google-re2' is not installed; run 'pip install google-re2'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: re.Pattern[str] = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        message = reason.decode() if isinstance(reason, bytes) else reason
        raise BadSettings(f"{RULES}: {pattern!r} is not a valid RE2 pattern: {message}") from None
    return compiled
