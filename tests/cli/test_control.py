"""Commands that find the control port of a running broker."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from ..commands import KBROKER, invoke
from ..limits import PROCESS_SECONDS


@pytest.mark.slow
def test_commands_find_the_control_port(tmp_path: Path) -> None:
    """Commands read the data directory or a port file, but no file that others may write."""

    def nodes(*arguments: str, status: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [*KBROKER, "cluster", "node", "list", *arguments],
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS,
            check=False,
            cwd=tmp_path,
            env=os.environ | variables,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    directory, ports = tmp_path / "kbroker-data", tmp_path / "port.json"
    command = [*KBROKER, "serve", "--port", "0", "--control-port", "0", "--port-file", str(ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("ready"):
            assert process.poll() is None
        found = directory / "control.json"
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        assert "running" in nodes()
        assert "running" in nodes(KBROKER_DATA_DIR=str(directory))
        assert "running" in nodes("--control", str(ports))
        written = json.loads(ports.read_text())
        assert "needs --control-token-file" in nodes("--control", written["control"], status=2)
        found.chmod(0o622)
        assert "another user could have written it" in nodes(status=1)
        process.terminate()
        process.communicate(timeout=PROCESS_SECONDS)
    assert not found.exists()
    assert "start the broker with --control-port" in nodes(status=1)


@pytest.mark.parametrize("answers", [0, 1])
def test_lost_response_says_that_command_may_have_run(tmp_path: Path, answers: int) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile() as lines:
                for _ in range(answers):
                    lines.readline()
                    connection.sendall(b'{"ok": true}\n')
                lines.readline()

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        options = ("--control", address, "--control-token-file", str(token))
        output = invoke("cluster", "node", "stop", "1", *options, status=1)
        thread.join()
    text = "no response to the command, which may have run" if answers else "cannot send a command"
    assert text in output.stderr
