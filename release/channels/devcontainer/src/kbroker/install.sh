#!/bin/sh
# Installs kbroker in /opt/kbroker, and an entry point that starts it. Runs as root.
# Options: PACKAGE, TOPICS, ARGUMENTS (devcontainer-feature.json).
set -eu

suitable_python() {
    for name in python3 python /usr/local/python/current/bin/python3; do
        if "$name" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            command -v "$name"
            return
        fi
    done
}

python=$(suitable_python)
if [ -z "$python" ] && command -v apt-get > /dev/null; then
    apt-get update
    apt-get install --yes --no-install-recommends python3 python3-venv
    rm -rf /var/lib/apt/lists/*
    python=$(suitable_python)
fi
if [ -z "$python" ]; then
    echo "kbroker needs Python 3.11 or newer: add ghcr.io/devcontainers/features/python" >&2
    exit 1
fi

"$python" -m venv /opt/kbroker
/opt/kbroker/bin/python -m pip install --no-cache-dir --disable-pip-version-check "${PACKAGE:-kbroker}"
ln -sf /opt/kbroker/bin/kbroker /usr/local/bin/kbroker

# The container and its developer may be different users.
mkdir -p /usr/local/share/kbroker
install -d -m 1777 /var/lib/kbroker
for topic in ${TOPICS:-}; do
    printf '%s\n' --topic "$topic"
done > /usr/local/share/kbroker/arguments
for word in ${ARGUMENTS:-}; do
    printf '%s\n' "$word"
done >> /usr/local/share/kbroker/arguments
cat > /usr/local/share/kbroker/entrypoint << 'END'
#!/bin/sh
# Starts kbroker in the background, then the command of the container.
serve() {
    set --
    while read -r argument; do
        set -- "$@" "$argument"
    done < /usr/local/share/kbroker/arguments
    exec kbroker serve --data-dir /var/lib/kbroker/data "$@"
}
serve > /var/lib/kbroker/log 2>&1 < /dev/null &
exec "$@"
END
chmod 755 /usr/local/share/kbroker/entrypoint
