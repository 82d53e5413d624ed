"""A Spark session like that of `driver.py`, with Kafka clients that use a delegation token."""

from __future__ import annotations

import sys
from pathlib import Path

from driver import Driver

CLUSTER = "spark.kafka.clusters.guarded"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"


def settings(bootstrap: str, user: str, password: str) -> dict[str, str]:
    """Return the settings to obtain a token, and the mechanism to authenticate with it."""
    return {
        f"{CLUSTER}.auth.bootstrap.servers": bootstrap,
        f"{CLUSTER}.target.bootstrap.servers.regex": ".*",
        f"{CLUSTER}.security.protocol": "SASL_PLAINTEXT",
        f"{CLUSTER}.sasl.token.mechanism": "SCRAM-SHA-512",
        f"{CLUSTER}.kafka.sasl.mechanism": "PLAIN",
        f"{CLUSTER}.kafka.sasl.jaas.config": LOGIN.format(
            f'username="{user}" password="{password}"'
        ),
    }


class DelegationDriver(Driver):
    """The verbs of `Driver`, and one that obtains tokens."""

    def do_obtain(self) -> list[str]:
        """Obtain tokens like Spark's scheduler with Hadoop security, and return their IDs."""
        context, jvm = self.spark.sparkContext, self.spark._jvm
        user = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser()
        credentials = user.getCredentials()
        provider = jvm.org.apache.spark.kafka010.KafkaDelegationTokenProvider()
        java_context = context._jsc
        provider.obtainDelegationTokens(
            java_context.hadoopConfiguration(), java_context.sc().conf(), credentials
        )
        user.addCredentials(credentials)
        tokens = credentials.getAllTokens().toArray()
        return [bytes(each.getIdentifier()).decode() for each in tokens]


if __name__ == "__main__":
    directory, address, name, secret = sys.argv[1:]
    DelegationDriver(Path(directory), address, None, settings(address, name, secret)).serve()
