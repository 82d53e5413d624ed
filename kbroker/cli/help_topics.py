"""Texts of `kbroker help TOPIC` about topics that concern several commands."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class HelpTopic(NamedTuple):
    """Summary and text of a topic."""

    summary: str
    text: str


_OFFSETS = """
Offsets: positions in partitions

`topic consume -o`, `topic trim --before`, `group seek --to` and `replay --from` accept:

  start, end     the first record, and the end of the partition
  47             this offset
  +3, -2         3 after the start, 2 before the end
  @TIME          the first record with this timestamp or a later one

`topic consume -o` also accepts ranges, which end before the second offset:

  :end           from the start to the current end
  47:60          from 47 to 59
  @T1:T2         from one time to another

TIME is 13 digits (ms), 10 digits (s), a date such as 2026-01-31, RFC 3339, or a duration from now
such as -48h. A date or time without a zone is UTC; append a zone such as +02:00 for another one.
`topic trim` and `group seek` reject times in the future: @-3d is three days ago, @3d is not.
In a range, the second duration counts from the first time: @-2h:30m.

Examples:
  kbroker topic consume orders -o :end
  kbroker topic consume orders -o @-1h
  kbroker group seek readers --to @2026-01-31 --dry-run

Documentation: docs/reference/cli.md#writing-and-reading-records
"""
_FORMATS = """
Formats: output for people and for programs

Commands with results have --format text|wide|json|yaml|ndjson; --json means ndjson.

  text           a table; on a terminal it fits the width
  wide           a table with more columns
  json, yaml     one document
  ndjson         one JSON object per line

JSON and YAML contain no colours. Text has colours on a terminal: --color always|never or the
environment variables NO_COLOR and FORCE_COLOR change that. Output to a pipe has its full width.

`topic consume` prints records: -f json, or a template such as -f '%p/%o %k=%v\\n'.

Examples:
  kbroker topic list --format json
  kbroker group describe readers --json
  kbroker topic consume orders -o :end -f '%k=%v\\n'

Documentation: docs/reference/cli.md#output
"""
_PROFILES = """
Profiles: names for clusters

A profile stores the address and the security settings of a cluster. The first of these that has a
value applies:

  -b and -X               on the command line
  --profile NAME          on the command line
  KBROKER_BOOTSTRAP       environment variable with addresses
  the selected profile    `kbroker profile use NAME`
  localhost:9092          the default

Profiles are in profiles.toml in the configuration directory of the user; the environment variable
KBROKER_PROFILES names another file. Commands do not print the secrets of profiles.

Examples:
  kbroker profile add prod -X brokers=kafka1,kafka2
  kbroker profile add test --file client.properties
  kbroker topic list --profile prod
  kbroker profile edit prod

Documentation: docs/reference/cli.md#profiles
"""
_EXIT_CODES = """
Exit codes

  0         success, or stopped by a signal
  1         failure; the message names the next action
  2         invalid command line
  3         a broker did not start, or ran out of memory
  4         timeout
  128 + n   ended by signal n

Documentation: docs/reference/cli.md#exit-status
"""
_SECURITY = """
Security: TLS and authentication of commands

-X and profiles accept the security settings of Kafka's clients:

  security.protocol          PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
  sasl.mechanism             PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER
  sasl.username              user name for PLAIN and SCRAM, with sasl.password
  sasl.jaas.config           login module with user name and password, as in Java
  ssl.truststore.location    trusted CA certificates, PEM or PKCS#12
  ssl.keystore.location      certificate and private key of the client

Other users of the machine can see command lines. Put secrets in a profile with
`kbroker profile add NAME --file client.properties`.

Examples:
  kbroker topic list -b kafka:9093 -X security.protocol=SSL -X ssl.truststore.location=ca.pem

Documentation: docs/how-to/tls.md
"""
TOPICS: Final[Mapping[str, HelpTopic]] = MappingProxyType(
    {
        "offsets": HelpTopic("Positions in partitions, by offset or time.", _OFFSETS),
        "formats": HelpTopic("Output formats and colours.", _FORMATS),
        "profiles": HelpTopic("Names for clusters, and which settings apply.", _PROFILES),
        "security": HelpTopic("TLS and authentication of commands.", _SECURITY),
        "exit-codes": HelpTopic("Exit status of commands.", _EXIT_CODES),
    }
)
